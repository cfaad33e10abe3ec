"""How a client secures its connections: the settings, TLS, and the exchange of SASL. Without sockets."""
