"""Compare-and-set with retries: read, decide, write if the version is unchanged; otherwise read and decide again."""

from collections.abc import Awaitable, Callable

from skep.base.errors import VersionConflict
from skep.metadata.metadata_store import MUST_NOT_EXIST, MetadataStore, Versioned

ATTEMPTS = 50
"""Each lost attempt means that another writer succeeded. So many in a row mean that something is wrong."""

Decide = Callable[[Versioned | None], bytes | Awaitable[bytes]]
"""Returns the new value of a key for its current entry. If it raises, nothing is written."""


async def update(store: MetadataStore, key: str, decide: Decide, *, always_write: bool = False) -> Versioned:
    """Returns the value that ``decide`` chose, as it was written. Raises VersionConflict after ATTEMPTS conflicts.

    A value that is unchanged is not written and not reported to watches. With ``always_write`` it is written, after
    which no earlier write that is still in flight can succeed.
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
    raise too_many_conflicts(key)


def too_many_conflicts(key: str) -> VersionConflict:
    return VersionConflict(f"{key}: {ATTEMPTS} conflicts with other writers in a row; giving up")
