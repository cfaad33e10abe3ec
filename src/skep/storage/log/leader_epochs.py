"""The offsets at which leader epochs began, for OffsetForLeaderEpoch and truncation (KIP-101, KIP-279).

The file ``leader-epoch-checkpoint`` is Kafka's: version, number of entries, then epoch and start offset::

    0
    2
    0 0
    3 1042

Epoch 0 wrote offsets 0 to 1041, epochs 1 and 2 wrote nothing, epoch 3 wrote from 1042 on. The file may lag behind:
every batch carries its epoch, and recovery adds those that it finds past the recovery point.
"""

from bisect import bisect_left, bisect_right

from skep.base.ids import LeaderEpoch, Offset

NO_EPOCH = LeaderEpoch(-1)
NO_OFFSET = Offset(-1)


class LeaderEpochs:
    """Entries (epoch, start offset), both strictly increasing. ``is_changed`` until the file has been written."""

    __slots__ = ("_entries", "is_changed", "latest")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._entries: list[tuple[int, int]] = []
        self.latest = NO_EPOCH
        for epoch, start_offset in entries or []:
            self.assign(LeaderEpoch(epoch), Offset(start_offset))
        self.is_changed = False

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(self._entries)

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Notes that batches from ``start_offset`` on are of ``epoch``; removes entries that contradict it."""
        if epoch == self.latest:
            return
        while self._entries and (self._entries[-1][0] >= epoch or self._entries[-1][1] >= start_offset):
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        self._changed()

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """Returns the largest known epoch that is not above ``epoch``, and where it ended.

        Returns (-1, -1) for an epoch that is above all known ones.
        """
        if epoch == NO_EPOCH or not self._entries:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(self._entries, int(epoch), key=lambda entry: entry[0])
        if above == len(self._entries):
            return NO_EPOCH, NO_OFFSET
        # Below the first entry: its batches are deleted, and a follower continues where the first entry begins.
        known = LeaderEpoch(self._entries[above - 1][0]) if above else epoch
        return known, Offset(self._entries[above][1])

    def epoch_before(self, offset: Offset) -> LeaderEpoch:
        """Returns the epoch of the last batch before ``offset``; one that began there and has no batch is ignored."""
        above = bisect_left(self._entries, int(offset), key=lambda entry: entry[1])
        return LeaderEpoch(self._entries[above - 1][0]) if above else NO_EPOCH

    def truncate_before(self, log_start_offset: Offset) -> None:
        """Removes what is not needed for a log that starts at ``log_start_offset``.

        The epoch of the last record before that stays, and begins with that record. A log whose records are all
        deleted, or truncated, needs it to compare its length and its history with the leader's.
        """
        self._truncate_start(Offset(max(log_start_offset - 1, 0)))

    def _truncate_start(self, log_start_offset: Offset) -> None:
        below = bisect_right(self._entries, int(log_start_offset), key=lambda entry: entry[1])
        if below and self._entries[below - 1][1] != log_start_offset:
            kept = [(self._entries[below - 1][0], int(log_start_offset))]
        else:
            kept = self._entries[max(below - 1, 0) : below]
        if len(kept) != below or kept != self._entries[:below]:
            self._entries[:below] = kept
            self._changed()

    def truncate_end(self, log_end_offset: Offset) -> None:
        """Removes the epochs of a log that ends before ``log_end_offset``."""
        above = bisect_left(self._entries, int(log_end_offset), key=lambda entry: entry[1])
        if above < len(self._entries):
            del self._entries[above:]
            self._changed()

    def _changed(self) -> None:
        self.latest = LeaderEpoch(self._entries[-1][0]) if self._entries else NO_EPOCH
        self.is_changed = True

    def encode(self) -> bytes:
        lines = ["0", str(len(self._entries)), *(f"{epoch} {start}" for epoch, start in self._entries)]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> "LeaderEpochs":
        """Raises ValueError when ``data`` is not such a file."""
        lines = data.decode("ascii").splitlines()
        if len(lines) < 2 or lines[0] != "0" or int(lines[1]) != len(lines) - 2:
            raise ValueError("not a leader epoch checkpoint of version 0")
        entries = [line.split(" ") for line in lines[2:]]
        return cls([(int(epoch), int(start)) for epoch, start in entries])
