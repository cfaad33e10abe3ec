"""Skep's own client, for the requests that confluent-kafka's AdminClient does not have.

It is a module apart from ``connection``, so that a command that does not need these requests does not import kio.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from skep.base.errors import ErrorCode, KafkaError
from skep.cli.connection import HOW_TO_START, Cluster
from skep.cli.failures import CommandError, UsageError
from skep.client.cluster_client import ClusterClient
from skep.client.errors import BadSetting, ClientError
from skep.client.security.client_security import ClientSecurity


@contextmanager
def skep_client(cluster: Cluster, *, must_answer: bool = True) -> Iterator[ClusterClient]:
    """Opens a client of ``cluster``. Errors of the client inside the ``with`` become CommandErrors.

    Raises CommandError at once if no address accepts connections. A command that waits for a cluster passes
    ``must_answer=False``: its requests are then repeated until the client's time is over.
    """
    try:
        client = ClusterClient(
            cluster.bootstrap,
            client_id=cluster.properties.get("client.id", "skep-cli"),
            timeout_s=cluster.request_timeout_s,
            security=ClientSecurity.of(cluster.properties),
        )
        with client:
            if must_answer:
                client.connect()
            yield client
    except BadSetting as error:
        raise UsageError(str(error)) from None
    except (ClientError, KafkaError) as error:
        raise CommandError(str(error).replace("(Connection refused)", f"({HOW_TO_START})")) from None


def error_text(code: ErrorCode) -> str:
    """Returns ``unknown topic or partition`` for ``unknown_topic_or_partition``."""
    return code.name.replace("_", " ")
