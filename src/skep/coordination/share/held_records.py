"""Checks that a member holds what it acknowledges, with Kafka's codes and their order."""

from collections.abc import Iterator, Sequence

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share.acknowledgement import Acknowledgement, AcknowledgeType
from skep.coordination.share.delivery_runs import DeliveryRuns, OffsetRange
from skep.coordination.share.share_state import DeliveryState


def check_not_done(start: int, deleted_below: int, batches: Sequence[Acknowledgement]) -> None:
    """Raises INVALID_RECORD_STATE for records below the start of the window, unless they are deleted from the log.

    No member holds them any more. Kafka confirms such an acknowledgement; then a member whose lock has expired believes
    that it accepted a record which another member has accepted.
    """
    for first, last, _ in batches:
        if max(first, deleted_below) <= min(last, start - 1):
            raise wrong_state(f"{first}-{last} is done with; the records in flight begin at {start}")


def check_held(runs: DeliveryRuns, member: str, batches: Sequence[Acknowledgement], *, can_renew: bool) -> None:
    """Raises the error of the first batch that has one, as Kafka does."""
    for run in runs.overlapping(_in_flight(runs, batches, can_renew=can_renew)):
        if run.state is not DeliveryState.ACQUIRED:
            raise wrong_state(f"{run.first}-{run.last} is {run.state.name}, not ACQUIRED")
        if run.target is not None:
            raise wrong_state(f"{run.first}-{run.last} is being acknowledged already")
        if run.member != member:
            raise wrong_state(f"{run.first}-{run.last} was acquired by another member")


def _in_flight(runs: DeliveryRuns, batches: Sequence[Acknowledgement], *, can_renew: bool) -> Iterator[OffsetRange]:
    """Yields the offsets of each batch that are in the window."""
    previous_last = -1
    for first, last, types in batches:
        if runs.start == runs.end:
            raise wrong_state(f"{first}-{last} is not in flight")
        if last >= runs.end:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"{first}-{last} ends past the records in flight, which end at {runs.end - 1}",
            )
        if first == previous_last:
            raise wrong_state(f"offset {first} is acknowledged twice")
        if AcknowledgeType.RENEW in types and not can_renew:
            raise wrong_state("the group does not allow renewals (share.renew.acknowledge.enable)")
        previous_last = last
        yield max(first, runs.start), last


def wrong_state(why: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record_state, why)
