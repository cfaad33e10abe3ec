"""Layer 3: the logs of a data directory. ``directory/log_directory.py`` is the entry point, ``log/log.py`` one log."""
