"""Topics as Arrow tables: ``read_arrow``, ``read_batches``, ``write_arrow``."""
