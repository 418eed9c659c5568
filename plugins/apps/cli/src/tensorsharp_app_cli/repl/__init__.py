"""A conversation on a terminal, with commands that begin with "/"."""
