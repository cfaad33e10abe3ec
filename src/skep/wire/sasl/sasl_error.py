"""The error of SASL messages."""


class SaslError(Exception):
    """The peer's message is malformed, is not allowed here, or does not prove what it should.

    The text is for a log: it names what is wrong and contains nothing that the peer sent.
    """
