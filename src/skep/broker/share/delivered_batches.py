"""What a share fetch delivers of one partition: which batches of the log are read for it, and which of them a
read_committed group does not get."""

from collections.abc import Sequence, Sized
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import Offset
from skep.coordination.share.acquisition import Acquired
from skep.coordination.share.delivery_runs import OffsetRange
from skep.records.batch import HEADER_SIZE, read_header
from skep.storage.log.log import Log
from skep.storage.log.log_slice import LogSlice
from skep.storage.segment.batch_scan import BatchPlace, hop


class DeliveredBatches(NamedTuple):
    """The batches that contain what was acquired. They may contain more: clients show only what was acquired."""

    records: Sized
    acquired: Sequence[Acquired]


def found_batches(found: LogSlice, reach: int, max_bytes: int, *, at_least_one: bool) -> list[BatchPlace]:
    """Returns the batches up to the one with the offset ``reach``, within ``max_bytes``; a first one that is larger if
    ``at_least_one``.

    The first one in any case of ``reach``: a hole in the log may be larger than what can be acquired.
    """
    places: list[BatchPlace] = []
    for place in hop(found.file, found.position, found.position + found.size):  # type: ignore[arg-type]  # not empty
        if places and place.base_offset > reach:
            break
        if place.end - found.position > max_bytes and (places or not at_least_one):
            return places
        places.append(place)
        if place.last_offset >= reach:
            break
    if not places:
        raise KafkaError(ErrorCode.corrupt_message, f"no batch is at position {found.position} of {found.file}")
    return places


def aborted_batches(log: Log, found: LogSlice, places: Sequence[BatchPlace]) -> list[OffsetRange]:
    """Returns those of the batches in a slice, all below the last stable offset, that were written in a transaction
    that was aborted."""
    if not places or found.file is None:
        return []
    begin, end = Offset(places[0].base_offset), Offset(places[-1].last_offset + 1)
    transactions = log.aborted_transactions(begin, end)
    if not transactions:
        return []
    aborted = []
    for place in places:
        header = read_header(found.file.read(place.position, HEADER_SIZE))
        if header.is_transactional and not header.is_control:
            base = place.base_offset
            # The last offset of a transaction is that of its marker.
            if any(
                one.producer_id == header.producer_id and one.first_offset <= base <= one.last_offset
                for one in transactions
            ):
                aborted.append((base, place.last_offset))
    return aborted
