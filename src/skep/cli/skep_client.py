"""Requests that the client library has no function for, on our own client: to delete offsets, and for transactions."""

from collections.abc import Iterator
from contextlib import contextmanager

from skep.base.errors import ErrorCode, KafkaError
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError
from skep.client.cluster_client import ClusterClient
from skep.client.errors import ClientError, Unreachable

CONNECT_WITHIN_S = 5.0


@contextmanager
def asking(cluster: Cluster) -> Iterator[ClusterClient]:
    """A client for ``cluster``; what goes wrong while it is used ends as the one line of a CommandError."""
    protocol = cluster.properties.get("security.protocol", "plaintext")
    if protocol.lower() != "plaintext":
        raise CommandError(f"this command speaks plain TCP only, not {protocol}")
    try:
        client_id = cluster.properties.get("client.id", "skep-cli")
        with ClusterClient(cluster.bootstrap, client_id=client_id, timeout_s=cluster.request_timeout_s) as client:
            yield client
    except Unreachable as error:
        hint = " (is it running? start one with: skep serve)" if "refused" in str(error) else ""
        raise CommandError(f"{error}{hint}") from None
    except ClientError as error:
        raise CommandError(str(error)) from None
    except KafkaError as error:
        raise CommandError(str(error)) from None


def in_words(code: ErrorCode) -> str:
    """``unknown topic or partition``."""
    return code.name.replace("_", " ")
