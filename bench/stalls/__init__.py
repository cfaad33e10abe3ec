"""How long one client can make the others wait."""
