"""Asking until there is an answer: a broker that is being restarted costs time, and is no failure.

Only for what may be asked twice.
"""

from collections.abc import Callable
from typing import TypeVar

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import RETRIABLE, ClusterClient
from skep.client.errors import Unreachable
from skep.client.retry import Patience

T = TypeVar("T")


def check(code: ErrorCode, what: str, detail: str | None = None) -> None:
    """KafkaError, with what it is about, when the code is one."""
    if code is not ErrorCode.none:
        raise KafkaError(code, f"{what}: {detail or code.name}")


def until_answered(
    cluster: ClusterClient, what: str, ask: Callable[[], T], code_of: Callable[[T], ErrorCode] | None = None
) -> T:
    """The first answer that neither a lost connection nor a code that passes took away; TimedOut when there is none."""
    patience = Patience(cluster, cluster.timeout_s, what)
    while True:
        try:
            answer = ask()
        except Unreachable as error:
            patience.wait(str(error))
        except KafkaError as error:
            if error.code not in RETRIABLE:
                raise
            patience.wait(str(error))
        else:
            code = ErrorCode.none if code_of is None else code_of(answer)
            if code not in RETRIABLE:
                return answer
            patience.wait(code.name)
