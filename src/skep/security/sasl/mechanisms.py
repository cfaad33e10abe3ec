"""The mechanisms that a listener offers, and the one that it must not offer everywhere."""

from collections.abc import Callable, Collection, Mapping

from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.security.sasl.mechanism import Mechanism
from skep.wire.sasl.plain import PLAIN

Begin = Callable[[], Mechanism]
"""Begins one login."""


class Mechanisms:
    """The enabled mechanisms of a listener by name, in the order in which SaslHandshake lists them."""

    def __init__(self, begin: Mapping[str, Begin]) -> None:
        self._begin = dict(begin)

    @property
    def names(self) -> list[str]:
        return list(self._begin)

    def begin(self, name: str) -> Mechanism:
        """Begins a login. Raises UNSUPPORTED_SASL_MECHANISM."""
        if name not in self._begin:
            # The name is the client's, of any length and content, so it is not repeated.
            enabled = ", ".join(self._begin)
            raise KafkaError(ErrorCode.unsupported_sasl_mechanism, f"enabled SASL mechanisms are {enabled}")
        return self._begin[name]()


def check_plain(listener: str, enabled: Collection[str], *, is_private: bool) -> None:
    """Refuses PLAIN where others can read the passwords: without TLS, beyond loopback."""
    if PLAIN in enabled and not is_private:
        raise OptionError(
            f"the listener {listener} would receive passwords unencrypted (PLAIN with SASL_PLAINTEXT): use SASL_SSL, "
            "or SCRAM, or say --insecure"
        )
