"""The share shard against a model with one entry for each offset, through restarts and the deletion of old records."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share import share_upkeep
from skep.coordination.share.share_state import DeliveryState, Reason, SharePartitionKey, ShareState, StateBatch
from tests.unit.coordination.share.scene import ORDERS, ShareScene

KEYS = [SharePartitionKey(group, ORDERS.topic_id, index) for group in ("kitchen", "bar") for index in range(2)]
WRITTEN = [state for state in DeliveryState if state is not DeliveryState.ACQUIRED]
BATCHES = st.lists(
    st.builds(
        lambda first, size, state, count, more: StateBatch(first, first + size, state, count, *more),
        st.integers(0, 25),
        st.integers(0, 6),
        st.sampled_from(WRITTEN),
        st.integers(0, 4),
        st.sampled_from([(), (1,), (2, 5_000), (1, 7_000, Reason.LIMIT)]),
    ),
    max_size=4,
)
EPOCHS = st.integers(-1, 4)
STARTS = st.integers(-1, 30)


class Model:
    """One share partition."""

    def __init__(self, state_epoch: int, leader_epoch: int, start: int) -> None:
        self.state_epoch, self.leader_epoch, self.start = state_epoch, leader_epoch, start
        self.complete = -1 if start == -1 else 0
        self.generation = 0
        self.offsets: dict[int, tuple[int, ...]] = {}

    def write(self, written: ShareState) -> None:
        self.leader_epoch = max(self.leader_epoch, written.leader_epoch)
        if written.generation > self.generation:
            self.generation, self.start, self.offsets = written.generation, written.start_offset, {}
            self.complete = written.delivery_complete_count
        if written.start_offset > self.start:
            self.complete = written.delivery_complete_count
        elif written.start_offset in (self.start, -1):
            self.complete = max(self.complete, written.delivery_complete_count)
        self.start = max(self.start, written.start_offset)
        for first, last, state, count, *more in written.batches:
            for offset in range(first, last + 1):
                self.offsets[offset] = max(self.offsets.get(offset, (-1,)), (count, state, *more))
        self.offsets = {offset: known for offset, known in self.offsets.items() if offset >= self.start}


class ShareMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scene = ShareScene(share_snapshot_update_records_per_snapshot=3)
        self.models: dict[SharePartitionKey, Model] = {}

    def refusal_of(self, key: SharePartitionKey, leader_epoch: int, state_epoch: int = 0) -> ErrorCode | None:
        """The code with which a request in these epochs is refused; the state epoch is not checked here."""
        if leader_epoch < 0 or state_epoch < 0 or key not in self.models:
            return ErrorCode.invalid_request
        return ErrorCode.fenced_leader_epoch if leader_epoch < self.models[key].leader_epoch else None

    @rule(key=st.sampled_from(KEYS), epoch=EPOCHS, start=STARTS)
    def initialize(self, key: SharePartitionKey, epoch: int, start: int) -> None:
        before = self.models.get(key)
        expected = None
        if epoch < 0:
            expected = ErrorCode.invalid_request
        elif before is not None and epoch < before.state_epoch:
            expected = ErrorCode.fenced_state_epoch
        assert _code(lambda: self.scene.initialize(key, epoch, start)) is expected
        if expected is None and (before is None or epoch > before.state_epoch or start > before.start):
            self.models[key] = Model(epoch, -1 if before is None else before.leader_epoch, start)
            if before is not None and before.state_epoch == epoch:
                self.models[key].generation = before.generation

    @rule(key=st.sampled_from(KEYS), epoch=EPOCHS)
    def read(self, key: SharePartitionKey, epoch: int) -> None:
        expected = self.refusal_of(key, epoch)
        assert _code(lambda: self.scene.read(key, epoch)) is expected
        if expected is None:
            self.models[key].leader_epoch = epoch

    @rule(
        key=st.sampled_from(KEYS),
        epoch=EPOCHS,
        stale=st.sampled_from([0, 0, 0, 0, -1, 1]),
        newer=st.sampled_from([0, 0, 0, 0, 1, 1, -1, 2]),
        start=STARTS,
        complete=st.integers(-1, 9),
        batches=BATCHES,
    )
    def write(
        self,
        key: SharePartitionKey,
        epoch: int,
        stale: int,
        newer: int,
        start: int,
        complete: int,
        batches: list[StateBatch],
    ) -> None:
        model = self.models.get(key)
        state_epoch = stale if model is None else model.state_epoch + stale
        generation = max(0, newer if model is None else model.generation + newer)
        written = ShareState(state_epoch, epoch, start, complete, batches, generation)
        expected = self.refusal_of(key, epoch, state_epoch)
        if expected is None and model is not None:
            if stale or generation < model.generation:
                expected = ErrorCode.fenced_state_epoch
            elif generation > model.generation and start == -1:
                expected = ErrorCode.invalid_request
        assert _code(lambda: self.scene.write_state(written, key)) is expected
        if expected is None:
            self.models[key].write(written)
            # A repeated write, also one that has replaced the state, changes nothing.
            self.scene.write_state(written, key)

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: SharePartitionKey) -> None:
        self.scene.delete(key)
        self.models.pop(key, None)

    @rule(milliseconds=st.sampled_from([1_000, 150_000, 300_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.scene.pass_ms(milliseconds)

    @rule()
    def prune(self) -> None:
        self.scene.delete_before(self.scene.submit(share_upkeep.needed_from))

    @rule()
    def restart(self) -> None:
        self.scene.restart()

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        states = self.scene.shard.states
        assert states.keys() == self.models.keys()
        for key, model in self.models.items():
            state = states[key]
            assert (state.state_epoch, state.leader_epoch) == (model.state_epoch, model.leader_epoch)
            assert (state.start_offset, state.delivery_complete_count) == (model.start, model.complete)
            assert state.generation == model.generation
            assert {
                offset: (batch.delivery_count, batch.state, *batch[4:])
                for batch in state.batches
                for offset in range(batch.first, batch.last + 1)
            } == model.offsets

    @invariant()
    def the_oldest_snapshot_comes_first(self) -> None:
        offsets = [state.snapshot_offset for state in self.scene.shard.states.values()]
        assert offsets == sorted(offsets)


def _code(request: object) -> ErrorCode | None:
    assert callable(request)
    try:
        request()
    except KafkaError as error:
        return error.code
    return None


TestShareMachine = ShareMachine.TestCase
