"""Producer ids, taken from the catalog in blocks so that most InitProducerId requests cost no write."""

from skep.base.ids import ProducerId
from skep.metadata.catalog import Catalog


class ProducerIds:
    """Owns a block of ids that nobody else was given. What is left of it when the broker stops is never used."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._block = iter(range(0))

    async def next_id(self) -> ProducerId:
        while True:
            for producer_id in self._block:
                return ProducerId(producer_id)
            # Two requests may both get here and both fetch a block: one of them is then left unused, which is safe.
            self._block = iter(await self._catalog.allocate_producer_ids())
