"""The broker's options in force, in one place for everything that reads them while the broker runs."""

from skep.base.config.broker_config import BrokerConfig


class CurrentConfig:
    """Holds the options in force. ``value`` is replaced as a whole when an option changes at run time.

    A reader keeps this object and reads ``value`` each time it needs an option: a ``BrokerConfig`` that is kept goes
    stale with the next change.
    """

    __slots__ = ("value",)

    def __init__(self, value: BrokerConfig) -> None:
        self.value = value
