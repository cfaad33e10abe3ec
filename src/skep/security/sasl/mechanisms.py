"""The mechanisms that a listener offers."""

from collections.abc import Callable, Mapping

from skep.base.errors import ErrorCode, KafkaError
from skep.base.secret import Secret
from skep.security.sasl.mechanism import Mechanism
from skep.security.sasl.password_checks import PasswordChecks
from skep.security.sasl.plain_mechanism import NOBODY, PlainMechanism
from skep.security.sasl.scram_mechanism import ScramMechanism, ScramUsers
from skep.wire.sasl.plain import PLAIN
from skep.wire.sasl.scram_keys import Scram

Begin = Callable[[], Mechanism]


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


def plain(passwords: PasswordChecks, listed: Mapping[str, Secret] = NOBODY) -> dict[str, Begin]:
    return {PLAIN: lambda: PlainMechanism(passwords, listed)}


def scram(mechanism: Scram, users: ScramUsers) -> dict[str, Begin]:
    return {mechanism.name: lambda: ScramMechanism(mechanism, users)}
