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
    before_truncation: Callable[[Offset], bool] = lambda end_offset: False
    """The log is about to be cut there: from now on no checkpoint that is begun promises more than that. Returns
    whether one has to be written before the cut. 0 also stands for a log that is about to begin anew."""
    write_checkpoints: Callable[[], None] = _nothing
    """Writes one here and now. StorageError refuses the truncation."""
    after_truncation: Callable[[], None] = _nothing
    """The log ends where it was to end."""
    moved_away: Callable[[str], None] = _nothing
    """The partition's directory has this name now, is nobody's, and is to be removed; the log begins anew."""
    discard: Callable[[str], None] = _nothing
    """A file that the log has given up, to be removed when there is time."""
