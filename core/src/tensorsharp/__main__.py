"""``python -m tensorsharp`` is the `tensorsharp` command."""

from tensorsharp.cli import main

if __name__ == "__main__":
    main()
