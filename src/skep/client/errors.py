"""What goes wrong between a client and a cluster, apart from the codes that a broker answers with (``KafkaError``)."""


class ClientError(Exception):
    """The request has no answer; the message says why, in one line."""


class Unreachable(ClientError):
    """Nobody answers at an address, or the connection broke. What was asked may have been done or not."""


class Unsupported(ClientError):
    """The broker does not have the API, or has it only in versions that we do not."""


class TimedOut(ClientError):
    """It was tried again and again and the time is over; the message has what the last attempt met."""


class NotVisibleYet(ClientError):
    """The transaction is committed, which nothing can change; only when readers will see it is not known."""


class TopicGone(ClientError):
    """The topic was there when the reading began and has been deleted."""


class TopicRecreated(ClientError):
    """A topic of that name is there and it is another one: its offsets mean other records."""


class OffsetOutOfRange(ClientError):
    """The log does not have the offset: retention took it, or nobody has written that far."""

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
        # Workers of other processes hand it to their driver.
        return type(self), (self.topic, self.partition, self.wanted, self.log_start, self.end)


class MissingExtra(ImportError):
    """A library is needed that is not installed with the broker; the message names the extra that brings it."""
