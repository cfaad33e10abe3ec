"""Commands about ACLs: who may do what."""
