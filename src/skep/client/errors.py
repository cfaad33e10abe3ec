"""Errors of a client, apart from the error codes of a response (``KafkaError``)."""


class ClientError(Exception):
    """A request has no response; the message says why, in one line."""


class Unreachable(ClientError):
    """No broker accepts connections at an address, or the connection broke.

    A request that was in flight may have been carried out or not.
    """


class Silent(Unreachable):
    """The broker has the request, or not, and sent nothing for too long. The connection was not closed by it."""


class Unsupported(ClientError):
    """The broker lacks the API, or serves only versions of it that this client lacks."""


class TimedOut(ClientError):
    """The time for all attempts is over; the message has the reason of the last one."""


class NotVisibleYet(ClientError):
    """The transaction is committed and stays so; when readers will see it is not known."""


class TopicGone(ClientError):
    """The topic was deleted after reading began."""


class TopicRecreated(ClientError):
    """The topic was deleted and created again: its offsets mean other records."""


class OffsetOutOfRange(ClientError):
    """The log lacks the offset: retention deleted it, or it is past the end."""

    def __init__(self, topic: str, partition: int, wanted: int, log_start: int, end: int) -> None:
        super().__init__(
            f"offset {wanted} of partition {topic}-{partition} is not in its log, which has {log_start} to {end}"
        )
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.log_start = log_start
        self.end = end

    def __reduce__(self) -> tuple[type["OffsetOutOfRange"], tuple[str, int, int, int, int]]:
        # Spark pickles it on its way from a worker to the driver.
        return type(self), (self.topic, self.partition, self.wanted, self.log_start, self.end)


class RowRefused(ClientError):
    """A row cannot be written. ``row`` counts from 0, from the first row given to the writer."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason

    def with_row(self, row: int) -> "RowRefused":
        """Returns the same error for a row that is counted from elsewhere."""
        return RowRefused(row, self.reason)

    def __reduce__(self) -> tuple[type["RowRefused"], tuple[int, str]]:
        # Spark pickles it on its way from a worker to the driver.
        return type(self), (self.row, self.reason)


class MissingExtra(ImportError):
    """A library that is not installed with the broker is needed; the message names the extra that brings it."""


class BadSetting(ClientError):
    """A setting of the client is wrong; the message names it, and shows no secret."""


class SecurityFailure(ClientError):
    """TLS or SASL failed for a reason that another attempt with the same settings does not change."""
