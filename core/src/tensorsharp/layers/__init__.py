"""What model families share, as plain functions over the op vocabulary and small readers of metadata."""
