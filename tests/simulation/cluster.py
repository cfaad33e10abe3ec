"""Brokers, a store, connections and a clock, all moved by steps that a schedule chooses.

A step is (kind, which, how): a kind of event, which of those that could happen now, and which way it goes. Three small
values, so that a schedule is data: drawn at random, replayed, shortened, or chosen by Hypothesis. One for which nothing
can happen changes nothing.

After the last step all brokers come back and nothing more breaks: then each partition has to find a leader.

Some schedules have a driver of the Spark sink too (``driver.py``), which decides each epoch of its query once.

Left out on purpose: retention by age and size (records are deleted by DeleteRecords alone), transactions, the time that
a sync takes, several topics, fetch sessions (each fetch names everything).
"""

from collections.abc import Sequence

from tests.simulation.cluster_state import Shape, Step
from tests.simulation.faults import Faults
from tests.simulation.process import WATCHED
from tests.simulation.violation import Violation

REST_ROUNDS = 8


class Cluster(Faults):
    """What a schedule drives."""

    def __init__(self, shape: Shape, *, is_traced: bool = False) -> None:
        super().__init__(shape, is_traced=is_traced)
        if shape.in_sync:
            self._commit_first()

    def _commit_first(self) -> None:
        """Those in sync have a record that is committed, which not all of them know; the others have nothing."""
        for choice in self._can_produce():
            self._do_produce(choice, 0)
        members = {broker for record in self.store.topic.partitions for broker in record.isr}
        for _ in range(2):
            for choice in self._can_round():
                if choice[0].process.id in members:
                    self._do_round(choice, 0)
        self.check()

    def come_to_rest(self) -> None:
        """Violation when a partition stays without a leader although all brokers are there."""
        self.limbo.clear()
        for _ in range(REST_ROUNDS):
            self._go_on()
            if all(record.leader in record.isr for record in self.store.topic.partitions):
                return
        raise Violation(f"all brokers are back, and the partitions are still {self.store.topic.partitions}")

    def _go_on(self) -> None:
        """Whatever can happen happens once, without faults."""
        alive = {process.session for process in self.processes.values()}
        for session in set(self.store.owners.values()) - alive:
            self._end_session(session)
        for process in list(self.processes.values()):
            # A call that its session is too old for; a store would refuse it.
            if process.running is not None and not self._can_be_served(process):
                self._do_crash(process, 0)
                continue
            # Also of what was written and taken away again since it last heard of it.
            for key in () if process.catalog._current.lock.locked() else WATCHED:
                process.hear_of(key)
            self.check()
        self._go_on_with(["thaw", "start", "finish", "catch_up", "control", "finish", "catch_up", "report", "finish"])

    def _go_on_with(self, kinds: Sequence[str]) -> None:
        for kind in kinds:
            for candidate in list(getattr(self, "_can_" + kind)()):
                # Another may have made it impossible.
                if candidate in getattr(self, "_can_" + kind)():
                    getattr(self, "_do_" + kind)(candidate, 0)
                    self.check()

    def step(self, step: Step) -> str | None:
        """What happened, in words; None when nothing could. Then ``check`` is due. Excused ends the schedule."""
        candidates = getattr(self, "_can_" + step.kind)()
        if not candidates:
            return None
        said: str | None = getattr(self, "_do_" + step.kind)(candidates[step.which % len(candidates)], step.how)
        return said
