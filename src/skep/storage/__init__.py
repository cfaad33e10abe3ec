"""Layer 3: the log of one partition on one disk. ``directory.py`` is the way in, ``log.py`` the heart."""
