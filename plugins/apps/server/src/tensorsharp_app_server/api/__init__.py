"""One adapter a file: each gives the routes of one wire protocol, or of a part of it."""
