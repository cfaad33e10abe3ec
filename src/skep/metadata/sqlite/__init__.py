"""The metadata store in a SQLite file, for the brokers of one machine."""
