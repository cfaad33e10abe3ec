"""What may be deleted from the start of ``__share_group_state``, and the snapshots that let it move on."""

from skep.coordination.share import share_upkeep
from skep.coordination.share.share_records import ShareSnapshotKey
from skep.coordination.share.share_state import SharePartitionKey
from skep.metadata.cluster_image import ClusterImage
from tests.unit.coordination.share.scene import KEY, ORDERS, OTHER, ShareScene, accepted, fields

INTERVAL_MS = 300_000


def needed_from(scene: ShareScene) -> int:
    offset: int = scene.submit(share_upkeep.needed_from)
    return offset


def test_records_are_needed_from_the_oldest_last_snapshot():
    scene = ShareScene(share_snapshot_update_records_per_snapshot=1)
    assert needed_from(scene) == 0
    scene.initialize(KEY)
    scene.initialize(OTHER)
    scene.write(accepted(0, 0))
    assert needed_from(scene) == 0
    scene.write(accepted(1, 1))
    assert needed_from(scene) == 1, "the snapshot of the other one"
    scene.delete(OTHER)
    assert needed_from(scene) == 3, "the last snapshot"
    scene.delete(KEY)
    assert needed_from(scene) == len(scene.log), "nothing is needed"


def test_what_is_needed_is_the_state_after_any_deletion():
    scene = ShareScene(share_snapshot_update_records_per_snapshot=3)
    keys = [SharePartitionKey(f"group {number}", ORDERS.topic_id, 0) for number in range(3)]
    for step in range(60):
        key = keys[step * step % 3]
        if step % 17 == 16:
            scene.delete(key)
        elif key in scene.shard.states:
            scene.write(accepted(step, step), key=key, start_offset=max(0, step - 10))
        else:
            scene.initialize(key)
        expected = {key: fields(state) for key, state in scene.shard.states.items()}
        pruned = scene._new_shard()
        for offset in range(needed_from(scene), len(scene.log)):
            scene._replay(pruned, offset)
        assert {key: fields(state) for key, state in pruned.states.items()} == expected


def test_a_share_partition_that_nobody_writes_to_does_not_keep_the_log():
    scene = ShareScene()
    scene.initialize(KEY)
    scene.write(accepted(0, 4))
    scene.initialize(OTHER)
    for offset in range(20):
        scene.write(accepted(offset, offset), key=OTHER)
    expected = scene.read(KEY)
    scene.pass_ms(INTERVAL_MS)
    assert needed_from(scene) == 23, "both were written again"
    assert [type(key) for key, _ in scene.records()[23:]] == [ShareSnapshotKey] * 2
    assert scene.read(KEY) == expected
    scene.restart()
    assert scene.read(KEY) == expected


def test_a_recent_snapshot_is_not_written_again():
    scene = ShareScene(share_snapshot_update_records_per_snapshot=10)
    scene.initialize(KEY)
    scene.initialize(OTHER)
    scene.pass_ms(INTERVAL_MS - 1)
    for offset in range(11):
        scene.write(accepted(offset, offset), key=OTHER)
    scene.pass_ms(1)
    assert [key.share_partition for key, _ in scene.records()[13:]] == [KEY]
    assert needed_from(scene) == 12


def test_a_quiet_log_is_not_written_again_and_again():
    scene = ShareScene()
    for key in (KEY, OTHER):
        scene.initialize(key)
        scene.write(accepted(0, 4), key=key)
        scene.write(accepted(5, 9), key=key)
    scene.pass_ms(INTERVAL_MS)
    written = len(scene.log)
    assert written == 8
    scene.pass_ms(INTERVAL_MS * 20)
    assert len(scene.log) == written


def test_the_states_of_a_deleted_topic_are_deleted_by_the_second_scan():
    scene = ShareScene()
    scene.initialize(KEY)
    scene.initialize(OTHER)
    scene.write(accepted(0, 4))
    scene.image = ClusterImage.of("test")
    scene.pass_ms(INTERVAL_MS)
    assert set(scene.shard.states) == {KEY, OTHER}
    scene.pass_ms(INTERVAL_MS)
    assert not scene.shard.states
    assert not scene.replayed().states


def test_the_state_of_a_topic_that_becomes_known_is_kept():
    scene = ShareScene()
    scene.initialize(KEY)
    known, scene.image = scene.image, ClusterImage.of("test")
    scene.pass_ms(INTERVAL_MS)
    scene.image = known
    scene.pass_ms(INTERVAL_MS)
    scene.image = ClusterImage.of("test")
    scene.pass_ms(INTERVAL_MS)
    assert KEY in scene.shard.states


def test_a_scan_of_many_is_split_and_ends():
    scene = ShareScene()
    keys = [SharePartitionKey(f"group {number}", ORDERS.topic_id, 0) for number in range(250)]
    for key in keys:
        scene.initialize(key)
        for offset in range(2):
            scene.write(accepted(offset, offset), key=key)
    scene.pass_ms(INTERVAL_MS)
    assert len(scene.log) > 750 + share_upkeep.RECORDS_AT_ONCE
    assert len(scene.log) - needed_from(scene) <= 2 * len(keys)
    assert set(scene.shard.states) == set(keys)
