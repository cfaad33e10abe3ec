"""What a log asks of the data directory that it lies in."""

from collections.abc import Callable
from typing import NamedTuple

from skep.base.ids import Offset


def _nothing(*_: object) -> None:
    pass


class Keeper(NamedTuple):
    """As it is, for a log that lies in no data directory: nothing is done."""

    before_creation: Callable[[], None] = _nothing
    """The partition's directory is about to be made; a StorageError from here refuses the append."""
    before_truncation: Callable[[Offset], None] = _nothing
    """The log is about to be cut there: afterwards no checkpoint on disk may promise more than that. StorageError
    refuses the truncation."""
    moved_away: Callable[[str], None] = _nothing
    """The partition's directory has this name now, is nobody's, and is to be removed; the log begins anew."""
    discard: Callable[[str], None] = _nothing
    """A file that the log has given up, to be removed when there is time."""
