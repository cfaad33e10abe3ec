"""The breaker of one share partition, with the options of its group, the clock, and log lines."""

import logging
from collections.abc import Callable

from skep.base.clock import Clock
from skep.base.config.share_group_config import ShareGroupConfig
from skep.coordination.share.breaker import Breaker, BreakerLimits
from skep.coordination.share.share_window import ShareWindow

logger = logging.getLogger(__name__)


class DeliveryBreaker:
    """Owns the breaker. A group without the option, and one whose records are accepted, costs a comparison."""

    def __init__(self, name: str, options: Callable[[], ShareGroupConfig], clock: Clock) -> None:
        """``name`` is that of the share partition in log lines."""
        self._name = name
        self._options = options
        self._clock = clock
        self._breaker = Breaker()

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)

    def _limits(self) -> BreakerLimits:
        options = self._options()
        return BreakerLimits(
            options.breaker_percent, options.breaker_window_ms, options.breaker_min_records, options.breaker_pause_ms
        )

    def most_records(self, window: ShareWindow) -> int | None:
        """Returns how many records may be delivered now; None: any number."""
        if self._breaker.opened_until_ms is None:
            return None
        return self._breaker.allowed(self._limits(), self._now_ms(), is_any_held=window.next_due is not None)

    @property
    def is_open(self) -> bool:
        return self._breaker.opened_until_ms is not None

    @property
    def next_check_ms(self) -> int | None:
        """When the pause is over."""
        until_ms = self._breaker.opened_until_ms
        return until_ms if until_ms is not None and until_ms > self._now_ms() else None

    def watch(self, window: ShareWindow) -> None:
        """Counts what has become of records since the last call."""
        accepted, died = window.take_finished()
        was_open = self._breaker.opened_until_ms is not None
        if not (accepted or died) or not (self._options().breaker_percent or was_open):
            return
        limits = self._limits()
        if self._breaker.finished(limits, self._now_ms(), accepted, died) and not was_open:
            logger.warning(
                "%s: nothing is delivered for %d ms, more than %d %% of the finished records have died "
                "(skep.share.breaker.percent); then single records are tried",
                self._name,
                limits.pause_ms,
                limits.percent,
            )
        elif was_open and self._breaker.opened_until_ms is None:
            logger.info("%s: records are delivered again", self._name)

    @property
    def problem(self) -> str | None:
        limits = self._limits()
        if limits.percent == 0 or self._breaker.opened_until_ms is None:
            return None
        left_ms = self._breaker.opened_until_ms - self._now_ms()
        how = f"for another {-(-left_ms // 1000)} s" if left_ms > 0 else "but for single records"
        return f"delivery is paused {how}: more than {limits.percent} % have died (skep.share.breaker.percent)"
