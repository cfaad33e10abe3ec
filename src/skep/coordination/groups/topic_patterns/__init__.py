"""Topic names that match regular expressions in RE2's syntax."""
