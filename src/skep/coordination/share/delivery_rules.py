"""The rules for failed deliveries: how the options of a share group apply.

Kafka counts deliveries. At the limit a record is archived, whatever has ended its deliveries. A group may count
failures instead (``counts_failures``): then a member that is gone, or a new leader, takes nothing from the limit. A
record that crashes its members, so that none of them acknowledges it, is given up after ``CRASH_FACTOR`` times as many
deliveries.
"""

from typing import NamedTuple

from skep.base.config.retry_backoff import RetryBackoff
from skep.base.config.share_group_config import ShareGroupConfig
from skep.coordination.share.delivery_runs import DONE, DeliveryOutcome, Run
from skep.coordination.share.share_state import DeliveryState, Reason

CRASH_FACTOR = 4
_LOWEST_ISOLATION_COUNT = 2


class DeliveryRules(NamedTuple):
    """The options in force."""

    delivery_limit: int
    max_locks: int
    max_waiting: int = 10_000
    counts_failures: bool = False
    backoff: RetryBackoff | None = None
    has_dead_letters: bool = False

    @classmethod
    def of(cls, options: ShareGroupConfig, *, has_dead_letters: bool) -> "DeliveryRules":
        return cls(
            options.delivery_count_limit,
            options.partition_max_record_locks,
            options.max_waiting_records,
            options.counts_failures,
            options.retry_backoff,
            has_dead_letters,
        )

    def returned(self, run: Run, now_ms: int, *, has_failed: bool) -> DeliveryOutcome:
        """Returns what becomes of a delivery that has ended without a result. ``now_ms`` is the wall clock."""
        failures = run.failures + 1 if self.counts_failures and has_failed else run.failures
        if self.counts_failures:
            is_used_up = failures >= self.delivery_limit or run.delivery_count >= CRASH_FACTOR * self.delivery_limit
        else:
            is_used_up = run.delivery_count >= self.delivery_limit
        if is_used_up:
            return self.given_up(Reason.LIMIT, failures)
        delay_ms = 0
        if run.hint is not None and run.hint.delay_ms is not None:
            delay_ms = run.hint.delay_ms
        elif self.backoff is not None and (has_failed or not self.counts_failures):
            delay_ms = self.backoff.delay_ms(failures if self.counts_failures else run.delivery_count)
        return DeliveryOutcome(DeliveryState.AVAILABLE, failures, now_ms + delay_ms if delay_ms else 0)

    def rejected(self, run: Run) -> DeliveryOutcome:
        return self.given_up(Reason.REJECTED, run.failures + 1 if self.counts_failures else run.failures)

    def given_up(self, reason: Reason, failures: int = 0) -> DeliveryOutcome:
        """Returns what becomes of a record that is not delivered again."""
        if self.has_dead_letters:
            return DeliveryOutcome(DeliveryState.ARCHIVING, failures, reason=reason)
        return DeliveryOutcome(DeliveryState.ARCHIVED)

    def outlives_its_record(self, run: Run) -> bool:
        """Whether records that are deleted from the log still need something: a dead letter, or the
        acknowledgement of the member that holds them."""
        is_tried = run.delivery_count > 0 and run.state not in DONE
        return run.outcome.state is DeliveryState.ARCHIVING or (is_tried and self.has_dead_letters)

    def isolated_size(self, run: Run) -> int | None:
        """Returns how many records of the run may be delivered, with nothing else; None if that is not limited.

        A record that fails a member, or crashes it, fails all that are delivered with it. Alone and in ever smaller
        parts it cannot take hundreds of good ones to the archive. The last delivery is of one record.
        """
        limit = self.delivery_limit
        if not self.counts_failures:
            return _fraction(run.size, run.delivery_count, limit)
        sizes = (
            _fraction(run.size, run.failures, limit),
            _fraction(run.size, run.delivery_count, CRASH_FACTOR * limit),
        )
        return min((size for size in sizes if size is not None), default=None)


def _fraction(size: int, count: int, limit: int) -> int | None:
    threshold = max(_LOWEST_ISOLATION_COUNT, -(-limit // 2))
    if count < threshold:
        return None
    return 1 if count >= limit - 1 else max(1, size >> (count - threshold + 1))
