"""``skep tls``: certificates to try out a secured broker with."""
