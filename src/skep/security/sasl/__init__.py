"""The server's side of SASL: who a client proves to be."""
