"""``skep produce``, ``skep consume`` and ``skep bench``."""
