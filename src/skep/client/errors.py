"""What goes wrong between a client and a cluster, apart from the codes that a broker answers with (``KafkaError``)."""


class ClientError(Exception):
    """The request has no answer; the message says why, in one line."""


class Unreachable(ClientError):
    """Nobody answers at an address, or the connection broke. What was asked may have been done or not."""


class Unsupported(ClientError):
    """The broker does not have the API, or has it only in versions that we do not."""
