"""How much memory the states of very many share groups take."""

import tracemalloc

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share.share_state import SharePartitionKey
from tests.lengths import times
from tests.unit.coordination.share.scene import ORDERS, ShareScene, accepted

GROUPS = times(10_000, 100_000)
BYTES_PER_STATE = 2_000
BATCHES = 4
"""What a group has typically in flight: a few runs of offsets, however many records they are."""


@pytest.mark.long
def test_the_states_of_very_many_groups_take_little_memory_and_are_limited() -> None:
    scene = ShareScene(max_share_partitions=GROUPS)
    keys = [SharePartitionKey(f"group-{number}", ORDERS.topic_id, 0) for number in range(GROUPS)]
    tracemalloc.start()
    try:
        for key in keys:
            scene.initialize(key)
            scene.write(*(accepted(1000 * n, 1000 * n + 499) for n in range(1, BATCHES + 1)), key=key)
        # The driver keeps the log in memory, which a broker does not.
        scene.log.clear()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(scene.shard.states) == GROUPS
    assert used / GROUPS < BYTES_PER_STATE
    with pytest.raises(KafkaError) as refused:
        scene.initialize(SharePartitionKey("one more", ORDERS.topic_id, 0))
    assert refused.value.code is ErrorCode.policy_violation
    scene.delete(keys[0])
    scene.initialize(SharePartitionKey("one more", ORDERS.topic_id, 0))
