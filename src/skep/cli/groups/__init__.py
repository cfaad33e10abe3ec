"""``skep groups``."""
