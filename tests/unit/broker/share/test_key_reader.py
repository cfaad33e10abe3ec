"""A share partition that is ordered by key, on a log in memory: keys are read at once, in a thread, or not at all."""

import asyncio

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import KafkaError
from skep.broker.share import key_reader
from skep.broker.share.share_partition import SharePartition
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.records.compression import Codec
from skep.replication.partition.delayed_fetch import DelayedFetch
from tests.compacting import compact
from tests.unit.broker.share.scene import GROUP, LOCK_MS, ShareScene, acknowledge, deliver, run

ACCEPT, RELEASE = 1, 2
ORDERED = {"skep_share_order": "key"}


def append(scene: ShareScene, keys: str, codec: Codec = Codec.NONE, size: int = 20, ttls: tuple[str, ...] = ()) -> None:
    """One batch; a space is a record without a key. ``ttls`` are those of the first records."""
    headers = [(("other", b"1"), ("ttl-ms", ttl.encode())) for ttl in ttls] + [()] * len(keys)
    records = [
        (None if key == " " else key.encode(), b"x" * size, scene.clock.now_ms(), more)
        for key, more in zip(keys, headers, strict=False)
    ]
    batch = build_batch(records, codec=codec)
    scene.led.append(batch, check_produced(batch, max_message_bytes=1 << 22))


def offsets(share: SharePartition, member: str = "m1", most: int = 500) -> list[int]:
    return [offset for first, last, _ in deliver(share, member, most) for offset in range(first, last + 1)]


async def accept(share: SharePartition, *done: int, member: str = "m1") -> None:
    for offset in done:
        assert await (acknowledge(share, offset, offset, ACCEPT, member=member) or asyncio.sleep(0)) is None


def test_members_get_one_record_of_each_key() -> None:
    async def scenario(scene: ShareScene) -> None:
        append(scene, "abc")
        append(scene, "aab d")
        share = await scene.loaded()
        assert offsets(share) == [0, 1, 2, 6, 7]
        assert offsets(share, "m2") == []
        await accept(share, 0)
        assert offsets(share, "m2") == [3]
        # The first record of the key comes again before the second one.
        share.release("m2")
        await accept(share, 1)
        assert offsets(share) == [3, 5]

    run(scenario, **ORDERED)


def test_a_lock_that_expires_does_not_let_the_next_record_pass() -> None:
    async def scenario(scene: ShareScene) -> None:
        append(scene, "aa")
        share = await scene.loaded()
        assert offsets(share) == [0]
        await scene.pass_ms(LOCK_MS)
        assert offsets(share, "m2") == [0]

    run(scenario, **ORDERED)


def test_many_keys_are_read_in_a_thread_and_wake_the_fetch_that_waits() -> None:
    async def scenario(scene: ShareScene) -> None:
        append(scene, "ab" * 300, size=1000)
        append(scene, "cc", Codec.ZSTD, size=key_reader.LITTLE_BYTES * 100)
        share = await scene.loaded()
        delayed = DelayedFetch(1)
        delayed.watch(share)
        assert offsets(share) == []
        await asyncio.wait_for(delayed.wait(30_000), 30)
        assert offsets(share) == [0, 1]
        await wait_for_keys(share, 602)
        assert offsets(share) == [600]
        await accept(share, 0)
        assert offsets(share) == [2]

    run(scenario, **ORDERED)


async def wait_for_keys(share: SharePartition, known_end: int) -> None:
    async with asyncio.timeout(30):
        assert share.window is not None
        share._free(share.window, share.options, 1)
        while share._key_reader is None or share._key_reader.keys.known_end < known_end:
            share._free(share.window, share.options, 1)
            await asyncio.sleep(0.001)


def test_records_of_a_batch_that_cannot_be_decoded_come_one_at_a_time() -> None:
    async def scenario(scene: ShareScene) -> None:
        append(scene, "abc", Codec.ZSTD)
        append(scene, "xyz")
        share = await scene.loaded()

        def broken(batch: bytes, *, max_size: int) -> list[tuple[int, int]]:
            raise KafkaError(2, "as told")  # type: ignore[arg-type]

        real, key_reader.key_hashes = key_reader.key_hashes, broken
        try:
            await wait_for_keys(share, 6)
        finally:
            key_reader.key_hashes = real
        assert offsets(share) == [0]
        await accept(share, 0)
        assert offsets(share) == [1]

    run(scenario, **ORDERED)


def test_records_that_compaction_has_removed_hold_up_nobody() -> None:
    async def scenario(scene: ShareScene) -> None:
        for _ in range(6):
            append(scene, "k")
            append(scene, "l")
        share = await scene.loaded()
        assert offsets(share) == [0, 1]
        share.release("m1")
        scene.led.log.flush()
        assert compact(scene.files, scene.led.log, scene.clock.now_ms()) is not None
        seen: list[int] = []
        while more := offsets(share):
            seen += more
            await accept(share, *more)
        assert seen == sorted(seen)
        assert {0, 1}.isdisjoint(seen)
        assert {10, 11} <= set(seen)
        assert share.window is not None
        assert share.window.start_offset == 12

    run(scenario, TopicConfig(cleanup_policy=("compact",), segment_bytes=200), **ORDERED)


def test_a_group_without_the_option_reads_no_keys() -> None:
    async def scenario(scene: ShareScene) -> None:
        append(scene, "aaa")
        share = await scene.loaded()
        assert offsets(share) == [0, 1, 2]
        assert share._key_reader is None

    run(scenario)


# Times to live.


def test_records_are_given_up_when_their_time_to_live_has_ended() -> None:
    async def scenario(scene: ShareScene) -> None:
        append(scene, "abcdef", ttls=("1000", "5000", "soon", "-1"))
        append(scene, "gh", Codec.GZIP, ttls=("1000",))
        share = await scene.loaded()
        assert offsets(share, most=1) == [0]
        await scene.pass_ms(1000)
        share.release("m1")
        # Those with a value that is no number live forever.
        assert offsets(share) == [1, 2, 3, 4, 5, 7]
        assert share.window is not None
        assert share.window.start_offset == 1
        await accept(share, 1, 2, 3, 4, 5, 7)
        assert share.window.start_offset == 8

    run(scenario, skep_share_record_ttl_header_enable="true")


def test_a_record_whose_time_has_ended_frees_its_key() -> None:
    async def scenario(scene: ShareScene) -> None:
        append(scene, "aab", ttls=("1000",))
        share = await scene.loaded()
        assert offsets(share) == [0, 2]
        share.release("m1")
        await scene.pass_ms(1000)
        assert offsets(share) == [2]
        assert offsets(share) == [1]

    run(scenario, **ORDERED, skep_share_record_ttl_header_enable="true")


def test_options_that_change_are_followed() -> None:
    async def scenario(scene: ShareScene) -> None:
        append(scene, "aab", ttls=("1000",))
        share = await scene.loaded()
        assert offsets(share, most=1) == [0]
        scene.image = scene.image.with_group_config(GROUP, {"skep.share.order": "none"})
        assert offsets(share, "m2") == [1, 2]
        share.release("m2")
        scene.image = scene.image.with_group_config(GROUP, {"skep.share.order": "key"})
        assert offsets(share, "m2") == [2]

    run(scenario, **ORDERED)
