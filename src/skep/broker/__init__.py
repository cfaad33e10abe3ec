"""Layer 5: what a broker does with a request: the dispatch table and one handler file per API."""
