"""One partition on this broker: leadership, acknowledgements, delayed fetches, group commit."""
