"""Makes a log durable: what is synced when, and what is written before the log is closed.

The steps of a flush, and the thread that runs each, are described in ``flush_state.py``; the offsets in ``log.py``.
"""

import logging

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.storage.log.flush_state import FlushPlan
from skep.storage.log.log_state import LogState
from skep.storage.log.synced_mark import MarkChange

logger = logging.getLogger(__name__)


class Flusher:
    """Plans flushes of one log and notes their results; at most one plan is under way.

    ``_next_config`` is a config that no longer syncs before it acknowledges. It waits for the flush that removes the
    mark (``synced_mark.py``); until then the log keeps syncing.
    """

    __slots__ = ("_next_config", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._next_config: TopicConfig | None = None

    def is_due(self, now_ms: int) -> bool:
        """Returns whether a flush is due.

        The reasons are ``flush.messages``, ``flush.ms``, a sealed segment that is not synced, a config that waits, and
        a failed sync that has to be repaired.
        """
        state = self._state
        flush, config = state.flush, state.config
        if flush.is_flushing or state.is_being_cut:
            return False
        unflushed_records = state.log_end_offset - flush.flushed_offset
        if flush.failure is not None or unflushed_records >= config.flush_messages or self.is_config_waiting:
            return True
        if flush.unflushed_since_ms is not None and now_ms - flush.unflushed_since_ms >= config.flush_ms:
            return True
        return state.active is not None and flush.flushed_offset < state.active.base_offset

    def plan(self) -> FlushPlan | None:
        """Returns what to sync now; None when everything is durable or a plan is under way."""
        state = self._state
        state.check_not_being_cut()
        active = state.active
        if state.flush.is_flushing:
            return None
        if active is None and not state.files.exists(state.path):
            # The leader may have begun an epoch. There is no directory to write it to, and no batch has it.
            return None
        if not state.flush.is_settled:
            return self.closing_plan()
        if active is not None:
            # Entries that the disk refused when they were added: the recovery point must not pass them.
            active.transaction_index.write_waiting()
            if state.snapshots.is_due(active):
                try:
                    state.write_snapshot(active)
                except StorageError as error:
                    logger.warning("%s: cannot write a snapshot of the producers: %s", state.topic_partition, error)
        return state.flush.plan(
            state.files, state.path, state.segments, state.log_end_offset, state.epochs, self._mark_change()
        )

    def closing_plan(self) -> FlushPlan | None:
        """Returns a plan after which a clean start has nothing to recover; None when nothing has changed.

        For a log that is about to be closed, or was just opened. No other plan may be under way. Raises StorageError
        when there is no room for what has to be written first.
        """
        state = self._state
        flush = state.flush
        for segment in flush.unfinished:
            segment.finish_indexes()
            flush.indexes_written(segment)
        flush.unfinished = []
        active = state.active
        if active is not None and not (flush.is_settled and state.log_end_offset == state.snapshots.newest):
            active.finish_indexes()
            state.write_snapshot(active)
            flush.indexes_written(active)
        flush.is_settled = True
        return self.plan()

    def succeeded(self, plan: FlushPlan) -> None:
        """Moves the recovery point, after ``plan.run`` has returned."""
        self._state.flush.flushed(plan)
        self._state.check_marks()
        if plan.mark is not None:
            self._mark_changed(plan.mark)

    def failed(self, plan: FlushPlan, error: StorageError) -> None:
        """Stops appends until a later flush succeeds, after ``plan.run`` has raised."""
        self._state.flush.flush_failed(plan, error, self._state.epochs)
        logger.error("%s: sync failed, no appends until one succeeds: %s", self._state.topic_partition, error)

    def run(self, plan: FlushPlan | None) -> None:
        """Runs a plan on the calling thread. Raises StorageError when the disk refuses."""
        if plan is None:
            return
        try:
            plan.run()
        except StorageError as error:
            self.failed(plan, error)
            raise
        self.succeeded(plan)

    def settle(self) -> None:
        """Makes what recovery found durable, on the calling thread, before the log is used.

        When the disk refuses, the log can be read but takes no appends until a later flush succeeds.
        """
        try:
            self.run(self.plan())
        except StorageError as error:
            self._state.flush.failure = str(error)
        self._take_config(self._state.config, may_be_marked=self._state.mark.is_made)

    @property
    def is_config_waiting(self) -> bool:
        """Whether a flush is needed although everything is synced: it removes the mark."""
        return self._next_config is not None

    def configure(self, config: TopicConfig) -> None:
        """Replaces the config. One that no longer syncs before it acknowledges takes effect with the next flush."""
        state = self._state
        syncs = state.config.syncs_before_acknowledging
        if config.syncs_before_acknowledging and not syncs:
            state.mark.syncs_from(state.log_end_offset)
        # Also when the mark is not known to be made: a plan may be making it, or have failed after that.
        is_marking = syncs and state.active is not None
        self._take_config(config, may_be_marked=state.mark.is_made or is_marking)

    def _take_config(self, config: TopicConfig, may_be_marked: bool) -> None:
        must_wait = may_be_marked and not config.syncs_before_acknowledging
        self._state.config = config.with_syncs if must_wait else config
        self._next_config = config if must_wait else None

    def _mark_change(self) -> MarkChange | None:
        state = self._state
        if self._next_config is not None:
            return MarkChange(is_made=False)
        if state.mark.is_made or not state.config.syncs_before_acknowledging or state.active is None:
            return None
        return MarkChange(is_made=True) if state.mark.may_be_made(state.log_end_offset) else None

    def _mark_changed(self, change: MarkChange) -> None:
        mark = self._state.mark
        if change.problem is not None:
            what = "create the synced mark" if change.is_made else "remove the synced mark; the log keeps its config"
            logger.warning("%s: cannot %s: %s", self._state.topic_partition, what, change.problem)
            # The file may exist or not. If the log keeps syncing, it is made again.
            mark.is_made = False
            return
        mark.is_made = change.is_made
        if not change.is_made and self._next_config is not None:
            self._take_config(self._next_config, may_be_marked=False)
