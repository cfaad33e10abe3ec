"""What the config handlers work with: entries and their sources, and changes to them."""
