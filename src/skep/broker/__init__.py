"""Layer 5: handling of requests: the dispatch table and one handler module per API."""
