"""ShareFetch and ShareAcknowledge, which every poll of a share consumer sends."""
