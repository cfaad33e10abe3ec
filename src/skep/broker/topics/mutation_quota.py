"""The quota of partitions that a client may create and delete (``controller_mutation_rate``, KIP-599).

Kafka's controller counts for the whole cluster. Here each broker counts what it is asked for itself.
"""

from skep.broker.request import AnyRequest
from skep.broker.services import Services


def count_mutations(
    services: Services, request: AnyRequest, partitions: int, *, strict_from: int | None = None
) -> None:
    """Counts partitions that the request is about to create or delete.

    Raises THROTTLING_QUOTA_EXCEEDED from version ``strict_from`` on if the client is over its quota already. Before,
    and without such a version, the response only has the throttle time.
    """
    if request.throttle is not None:
        is_strict = strict_from is not None and request.version >= strict_from
        request.throttle.mutated(partitions, services.clock.monotonic(), is_strict=is_strict)
