"""Producer ids, allocated from the catalog in blocks so that most InitProducerId requests need no write.

One block is kept in reserve, so that new producers can start while the store is unavailable.
"""

import asyncio
import logging

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.base.ids import ProducerId
from skep.metadata.catalog import Catalog

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0


class ProducerIds:
    """Owns blocks of ids that no other broker has. Ids that are left when the broker stops are never used."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._block = self._reserve = range(0)
        self._needs_reserve = asyncio.Event()
        self._needs_reserve.set()

    async def next_id(self) -> ProducerId:
        while not self._block:
            self._block, self._reserve = self._reserve, range(0)
            self._needs_reserve.set()
            if not self._block:
                # Two requests may both get here and both allocate a block. One block is then never used, which is safe.
                self._block = await self._catalog.allocate_producer_ids()
        producer_id, self._block = self._block[0], self._block[1:]
        return ProducerId(producer_id)

    async def keep_reserve(self) -> None:
        """Waits until there is no reserve, then allocates one. Must be called repeatedly."""
        await self._needs_reserve.wait()
        try:
            self._reserve = await self._catalog.allocate_producer_ids()
        except (StoreUnavailable, VersionConflict) as error:
            logger.info("cannot allocate a reserve of producer ids yet: %s", error)
            await asyncio.sleep(RETRY_PAUSE_S)
        else:
            self._needs_reserve.clear()
