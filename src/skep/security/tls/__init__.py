"""TLS: certificates to try it out with."""
