"""Read, decide, write if nobody else wrote; otherwise read and decide again."""

from collections.abc import Awaitable, Callable

from skep.base.errors import VersionConflict
from skep.metadata.metadata_store import MUST_NOT_EXIST, MetadataStore, Versioned

ATTEMPTS = 50
"""Each lost attempt means that another writer got through, so many in a row mean that something is wrong."""

Decide = Callable[[Versioned | None], bytes | Awaitable[bytes]]
"""The new value of a key from what is there now. What it raises ends the update with nothing written."""


async def update(store: MetadataStore, key: str, decide: Decide, *, always_write: bool = False) -> Versioned:
    """The value that ``decide`` chose, as it was written. VersionConflict after losing ATTEMPTS times in a row.

    A decision that changes nothing is not written, and not reported to watches; with ``always_write`` it is, after
    which no earlier write that is still on its way can succeed.
    """
    for _ in range(ATTEMPTS):
        entry = await store.get(key)
        decided = decide(entry)
        value = decided if isinstance(decided, bytes) else await decided
        if entry is not None and value == entry.value and not always_write:
            return entry
        expected_version = MUST_NOT_EXIST if entry is None else entry.version
        try:
            return Versioned(value, await store.put(key, value, expected_version=expected_version))
        except VersionConflict:
            continue
    raise gave_up(key)


def gave_up(key: str) -> VersionConflict:
    return VersionConflict(f"{key}: lost against other writers {ATTEMPTS} times in a row")
