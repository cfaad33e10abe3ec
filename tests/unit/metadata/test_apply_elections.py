"""Elections that another broker reported are in the image, and older records that are read later do not undo them."""

from dataclasses import replace

from skep.base.ids import BrokerId, LeaderEpoch
from skep.metadata import layout
from skep.metadata.catalog import Catalog
from skep.metadata.metadata_store import Versioned
from skep.metadata.model import TopicRecord
from tests.unit.metadata.test_catalog import catalog_on, in_event_loop, until

ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))


def led_by_three(topic: TopicRecord) -> TopicRecord:
    """Applies what another broker knows of the first partition: three more elections."""
    later = topic.partitions[0]._replace(leader=THREE, leader_epoch=LeaderEpoch(3))
    return replace(topic, partitions=(later, *topic.partitions[1:]))


def leaders(catalog: Catalog) -> list[tuple[int, int]]:
    return [(one.leader, one.leader_epoch) for one in catalog.image.topics["t"].partitions]


@in_event_loop
async def test_applied_elections_are_kept_when_the_same_or_an_older_record_is_read(tmp_path):
    async with catalog_on(tmp_path) as catalog:
        created = await catalog.create_topic("t", [[ONE, TWO, THREE], [TWO, THREE, ONE]])
        await catalog.apply_elections("t", led_by_three)
        assert leaders(catalog) == [(3, 3), (2, 0)]
        await catalog.change_topic("t", lambda topic: topic)
        assert leaders(catalog) == [(3, 3), (2, 0)], "the same record, read again"
        # As a lagging server of the store returns it: newer than what we had read, older than what was applied.
        elected = replace(created, partitions=tuple(one.elected(TWO, (TWO,)) for one in created.partitions))
        behind = Versioned(elected.encode(), created.version + 1)
        for image in (
            layout.image_after(catalog.image, layout.topic_key("t"), behind),
            layout.image_of("c", {layout.topic_key("t"): behind}, catalog.image),
        ):
            [first, second] = image.topics["t"].partitions
            assert (first.leader, first.leader_epoch) == (THREE, 3)
            assert (second.leader, second.leader_epoch) == (TWO, 1), "no later election of this one was applied"


@in_event_loop
async def test_the_store_has_the_last_word(tmp_path):
    async with catalog_on(tmp_path) as catalog, catalog_on(tmp_path) as other:
        await catalog.create_topic("t", [[ONE, TWO, THREE]])
        await until(other, lambda: "t" in other.image.topics)
        await catalog.apply_elections("t", led_by_three)

        def elected(topic: TopicRecord) -> TopicRecord:
            later = topic.partitions[0]._replace(leader=TWO, leader_epoch=LeaderEpoch(4))
            return replace(topic, partitions=(later,))

        await other.change_topic("t", elected)
        await until(catalog, lambda: leaders(catalog) == [(2, 4)])


@in_event_loop
async def test_a_topic_that_was_made_anew_begins_anew(tmp_path):
    async with catalog_on(tmp_path) as catalog:
        await catalog.create_topic("t", [[ONE, TWO, THREE]])
        await catalog.apply_elections("t", led_by_three)
        await catalog.delete_topic("t")
        await catalog.apply_elections("t", led_by_three)
        assert "t" not in catalog.image.topics
        await catalog.create_topic("t", [[ONE, TWO, THREE]])
        assert leaders(catalog) == [(1, 0)]
