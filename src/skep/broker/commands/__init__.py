"""The commands of the private API, SkepCommand: one module each, with a ``COMMAND``."""
