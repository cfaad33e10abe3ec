"""Producer ids, taken from the catalog in blocks so that most InitProducerId requests cost no write.

A block is kept in reserve: new producers can begin while the store is away, as those that are there can go on.
"""

import asyncio
import logging

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.base.ids import ProducerId
from skep.metadata.catalog import Catalog

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0


class ProducerIds:
    """Owns blocks of ids that nobody else was given. What is left of them when the broker stops is never used."""

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
                # Two requests may both get here and both take a block: one is then left unused, which is safe.
                self._block = await self._catalog.allocate_producer_ids()
        producer_id, self._block = self._block[0], self._block[1:]
        return ProducerId(producer_id)

    async def keep_reserve(self) -> None:
        """Waits until there is none, and takes one. To be called again and again."""
        await self._needs_reserve.wait()
        try:
            self._reserve = await self._catalog.allocate_producer_ids()
        except (StoreUnavailable, VersionConflict) as error:
            logger.info("no producer ids in reserve yet: %s", error)
            await asyncio.sleep(RETRY_PAUSE_S)
        else:
            self._needs_reserve.clear()
