"""The file system behind a small interface, so that tests can make a write or a sync fail."""
