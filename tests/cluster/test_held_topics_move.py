"""Leaders of a held partition die: another broker's worker takes over, and every message is released once."""

import random
import time
from collections.abc import Iterator

import pytest

from skep.testing import EmbeddedCluster
from tests.cluster.coordinators import assert_no_bug_was_logged
from tests.cluster.driving import LONG_SESSIONS
from tests.lengths import times
from tests.scenario.held_history import (
    HELD,
    TARGET,
    Reader,
    Writer,
    check_history,
    create_held,
    is_decided,
    print_lateness,
    random_writes,
)

pytestmark = pytest.mark.xdist_group(__name__)

MESSAGES = times(600, long=20_000)
LONGEST_MS = times(6_000, long=120_000)
KILLS = times(2, long=20)
OPTIONS = {**LONG_SESSIONS, "transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "1"}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, config=OPTIONS) as started:
        yield started


@pytest.mark.long
def test_every_message_is_released_once_when_leaders_die(cluster: EmbeddedCluster) -> None:
    servers = cluster.bootstrap_servers
    create_held(servers, replicas=3, config={"min.insync.replicas": "2"})
    cluster.wait_until_in_sync()
    writer = Writer(servers)
    target, held = Reader(servers, TARGET, 2), Reader(servers, HELD, 1)
    random_writes(writer, random.Random(7), MESSAGES, LONGEST_MS, int(time.time() * 1000) + 1000)
    for kill in range(KILLS):
        enough = MESSAGES * (kill + 1) * 7 // (KILLS + 1) // 10
        target.until(lambda found, enough=enough: len(found) >= enough, f"{enough} are released")
        leader = cluster.leader_of(HELD)
        cluster.kill(leader)
        cluster.restart(leader)
        cluster.wait_until_in_sync()
    writer.flush()

    def all_is_decided(_: object) -> bool:
        target.read(0)
        return is_decided(held.messages, MESSAGES)

    held.until(all_is_decided, "every message is released or recalled")
    target.read_to_the_end()
    print_lateness(check_history(held.messages, target.messages))
    target.close()
    held.close()
    assert_no_bug_was_logged(cluster)
