"""Members of consumer groups (KIP-848): heartbeats, departures, and the requests of classic members."""
