"""Environment variables that several packages read. Without imports, for ``skep --help``."""

COMMAND_CONFIG = "SKEP_COMMAND_CONFIG"
"""The path of a file of client properties, for the commands and for the data source of Spark."""
