"""The same steps chosen by Hypothesis, which shortens what it finds; two brokers, so that short schedules go far."""

import asyncio

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.simulation.cluster import Cluster
from tests.simulation.cluster_state import Shape, Step
from tests.simulation.planted import the_high_watermark_does_not_wait_for_the_slowest
from tests.simulation.violation import Excused, Violation
from tests.simulation.walking import FAULTS, ORDINARY, quiet

KINDS = [kind for kind, weight in (ORDINARY | FAULTS | {"reassign": 2, "delete": 2}).items() for _ in range(weight)]


class ClusterMachine(RuleBasedStateMachine):
    """Owns a cluster and the loop that its acknowledgements are waited for on."""

    def __init__(self):
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._is_over = False
        self._cluster = self._loop.run_until_complete(self._begin())

    async def _begin(self):
        return Cluster(Shape(brokers=2, min_insync_replicas=1, in_sync=2))

    @rule(kind=st.sampled_from(KINDS), which=st.integers(0, 3), how=st.integers(0, 23))
    def step(self, kind, which, how):
        if not self._is_over:
            self._loop.run_until_complete(self._step(Step(kind, which, how)))

    async def _step(self, step):
        try:
            if self._cluster.step(step) is not None:
                self._cluster.check()
        except Excused:
            self._is_over = True

    def teardown(self):
        self._cluster.close()
        self._loop.close()


SETTINGS = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_no_short_schedule_breaks_a_promise():
    with quiet():
        run_state_machine_as_test(ClusterMachine, settings=SETTINGS)


def test_a_planted_bug_is_found_by_it_too():
    searching = settings(SETTINGS, max_examples=500, phases=[Phase.generate], database=None, derandomize=True)
    with quiet(), the_high_watermark_does_not_wait_for_the_slowest(), pytest.raises(Violation):
        run_state_machine_as_test(ClusterMachine, settings=searching)
