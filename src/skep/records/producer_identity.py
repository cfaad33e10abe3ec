"""The producer that batches are written for; apart from the columnar modules, whose libraries take long to import."""

from typing import NamedTuple


class ProducerIdentity(NamedTuple):
    producer_id: int
    producer_epoch: int
    transactional: bool


NO_PRODUCER = ProducerIdentity(-1, -1, False)
