"""Brokers, a store, connections and a clock, all moved by steps that a schedule chooses.

A step is (kind, which, how): a kind of event, which of those that could happen now, and which way it goes. Three small
values, so that a schedule is data: drawn at random, replayed, shortened, or chosen by Hypothesis. One for which nothing
can happen changes nothing.

Left out on purpose: retention (logs begin at 0), transactions, syncs before acknowledgement, several topics, fetch
sessions (each fetch names everything).
"""

from tests.simulation.cluster_state import Shape, Step
from tests.simulation.faults import Faults


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

    def step(self, step: Step) -> str | None:
        """What happened, in words; None when nothing could. Then ``check`` is due. Excused ends the schedule."""
        candidates = getattr(self, "_can_" + step.kind)()
        if not candidates:
            return None
        said: str | None = getattr(self, "_do_" + step.kind)(candidates[step.which % len(candidates)], step.how)
        return said
