"""The client of the commands about archives, and what goes wrong in them as one line."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from skep.cli.connection import cluster_of
from skep.cli.failures import CommandError
from skep.cli.skep_client import asking
from skep.client.arrow_libraries import pyarrow
from skep.client.cluster_client import ClusterClient
from skep.client.errors import MissingExtra


@contextmanager
def archive_client(bootstrap: str, properties: Iterable[str] | None) -> Iterator[ClusterClient]:
    """CommandError also when pyarrow is missing, nobody answers, or the disk refuses something."""
    try:
        pyarrow()
        cluster = cluster_of(bootstrap, properties)
        cluster.metadata()
        with asking(cluster) as client:
            yield client
    except MissingExtra as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from None
