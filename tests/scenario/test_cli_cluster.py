"""``skep cluster`` and ``kafka-topics --describe`` against a real cluster: seen, moved, elected, emptied."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from skep.cli.failures import CommandError
from skep.cli.kafka import kafka_topics
from skep.cli.main import app
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Four brokers; a test that stops one starts it again. None is to lose its session because the machine is busy."""
    with EmbeddedCluster(4, config={"zookeeper.session.timeout.ms": "5000"}) as running:
        yield running


@pytest.fixture(autouse=True)
def bootstrap(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_BOOTSTRAP", cluster.bootstrap_servers)


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    return f"topic-{uuid4().hex[:8]}"


def skep(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def done(*arguments: object) -> str:
    result = skep(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(*arguments: object) -> str:
    result = skep(*arguments)
    assert isinstance(result.exception, CommandError), (result.output, result.exception)
    return str(result.exception)


def described() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done("cluster", "describe", "--json"))
    return document


def create(topic: str, assignment: str, cluster: EmbeddedCluster) -> None:
    arguments = ["--create", "--topic", topic, "--replica-assignment", assignment]

    def is_created() -> bool:
        try:
            kafka_topics.execute([*arguments, "--bootstrap-server", cluster.bootstrap_servers])
        except CommandError as error:
            # On a busy machine a broker may have lost its session a moment ago; Metadata still shows it for a while.
            assert "no such broker is registered" in str(error), error
            return False
        return True

    wait_until(is_created, "all brokers of the assignment are registered")
    cluster.wait_until_in_sync()
    done("cluster", "wait", "--timeout", 60)


def replicas_of(topic: str) -> list[list[int]]:
    [document] = json.loads(done("topics", "describe", topic, "--json"))
    return [partition["replicas"] for partition in document["partitions"]]


def leaders_of(topic: str) -> list[int]:
    [document] = json.loads(done("topics", "describe", topic, "--json"))
    return [partition["leader"] for partition in document["partitions"]]


def wait_until_all_know(cluster: EmbeddedCluster, topic: str, is_right: Callable[[list[list[int]]], bool]) -> None:
    """Brokers hear of new replicas one after the other, and any of them may be asked."""

    def replicas(i: int) -> list[list[int]]:
        with RawClient(cluster.brokers[i]) as client:
            [row] = client.ask(apis.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
        partitions = sorted(row.partitions, key=lambda partition: partition.partition_index)
        return [list(partition.replica_nodes) for partition in partitions]

    wait_until(
        lambda: all(is_right(replicas(i)) for i in cluster.running),
        lambda: f"the replicas are the new ones: {[replicas(i) for i in cluster.running]}",
    )


def test_the_brokers_are_shown_with_what_they_hold(cluster: EmbeddedCluster, topic: str) -> None:
    before = {broker["id"]: broker for broker in described()["brokers"]}
    create(topic, "1:2,2:1,1:3", cluster)
    document = described()
    assert document["controller"] == cluster.controller
    assert document["partitions"]["under_replicated"] == document["partitions"]["offline"] == 0
    assert document["troubled"] == []
    after = {broker["id"]: broker for broker in document["brokers"]}
    assert {i: broker["address"] for i, broker in after.items()} == cluster.brokers
    assert [after[i]["replicas"] - before[i]["replicas"] for i in (1, 2, 3, 4)] == [3, 2, 1, 0]
    assert [after[i]["leaders"] - before[i]["leaders"] for i in (1, 2, 3, 4)] == [2, 1, 0, 0]


def test_the_table_marks_the_controller_and_says_that_all_is_well(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "1:2", cluster)
    shown = done("cluster", "describe")
    assert f"4 brokers  controller {cluster.controller}" in shown
    [marked] = [line for line in shown.splitlines() if line.endswith("  controller")]
    assert marked.split()[:2] == [str(cluster.controller), cluster.brokers[cluster.controller]]
    assert "all replicas in sync" in shown


def test_a_broker_that_is_away_is_shown_and_its_partitions_too(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "3:4", cluster)
    cluster.kill(4)
    try:

        def trouble() -> list[dict[str, Any]]:
            return [row for row in described()["troubled"] if row["topic"] == topic and row["isr"] == [3]]

        [troubled] = wait_until(trouble, "the partition is under-replicated")
        document = described()
        assert document["partitions"]["under_replicated"] > 0
        assert next(broker for broker in document["brokers"] if broker["id"] == 4)["address"] is None
        assert (troubled["isr"], troubled["troubles"]) == ([3], ["under-replicated"])
        assert "not running" in done("cluster", "describe")
        unhealthy = skep("health", "--brokers", 4)
        assert unhealthy.exit_code == 1
        assert unhealthy.stdout.startswith("not healthy: of ")
        assert unhealthy.stdout.endswith("broker 4 is not running; 3 of 4 expected brokers are running\n")
        assert json.loads(skep("health", "--json").stdout)["brokers"] == {"running": [1, 2, 3], "missing": [4]}
        told = refused("cluster", "wait", "--timeout", 0)
        assert told.startswith("not in sync after 0 s: ")
        assert refused("cluster", "wait", "--timeout", 0, "--brokers", 4).endswith("only 3 of 4 brokers are running")
    finally:
        cluster.restart(4)
    assert "on 4 brokers, all replicas in sync." in done("cluster", "wait", "--brokers", 4, "--timeout", 60)
    assert done("health", "--brokers", 4).startswith("healthy: 4 brokers, ")


def test_a_silent_broker_does_not_keep_us_from_looking(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "2:3", cluster)
    cluster.pause(1)
    try:
        assert "lag" in done("cluster", "describe"), "though the first address that was given is the silent one's"
    finally:
        cluster.resume(1)
    done("cluster", "wait", "--brokers", 4, "--timeout", 60)


def test_kafka_topics_reports_what_is_under_replicated_and_unavailable(
    cluster: EmbeddedCluster, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    create(topic, "3:4,4:3,3:2", cluster)
    other = f"{topic}-alone"
    create(other, "4,3", cluster)

    def reported(*flags: str) -> list[str]:
        capfd.readouterr()
        kafka_topics.execute(["--describe", *flags, "--bootstrap-server", cluster.bootstrap_servers])
        return [line for line in capfd.readouterr().out.splitlines() if f"Topic: {topic}" in line]

    assert reported("--under-replicated-partitions") == []
    cluster.kill(4)
    try:
        wait_until(lambda: len(reported("--under-replicated-partitions")) == 2, "two are under-replicated")
        rows = reported("--under-replicated-partitions")
        assert "\tLeader: 3\tReplicas: 3,4\tIsr: 3\t" in rows[0]
        assert "\tLeader: 3\tReplicas: 4,3\tIsr: 3\t" in rows[1]
        [unavailable] = wait_until(lambda: reported("--unavailable-partitions"), "one has no leader")
        assert f"Topic: {other}\tPartition: 0\tLeader: none\tReplicas: 4\tIsr: 4\t" in unavailable
    finally:
        cluster.restart(4)
    done("cluster", "wait", "--brokers", 4, "--timeout", 60)
    wait_until(lambda: reported("--unavailable-partitions") == [], "all brokers know of its leader")


def test_partitions_are_moved_to_the_brokers_named(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "1:2,2:1", cluster)
    assert "Moved 2 partitions." in done("cluster", "reassign", "--topic", topic, "--replicas", "3,4")
    wait_until_all_know(cluster, topic, lambda replicas: replicas == [[3, 4], [4, 3]])
    assert replicas_of(topic) == [[3, 4], [4, 3]]
    assert leaders_of(topic) in ([3, 4], [3, 3], [4, 4], [4, 3])
    assert "nothing to move" in done("cluster", "reassign", "--topic", topic, "--replicas", "3,4")


def test_a_plan_is_made_shown_and_carried_out_from_a_file(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    create(topic, "1:2,1:2,1:2,1:2", cluster)
    text = done("cluster", "reassign", "--topic", topic, "--brokers", "1,2,3,4", "--dry-run")
    assert replicas_of(topic) == [[1, 2]] * 4, "a dry run does nothing"
    (tmp_path / "plan.json").write_text(text)
    done("cluster", "reassign", "--file", tmp_path / "plan.json", "--throttle", 100_000_000)
    planned = {row["partition"]: row["replicas"] for row in json.loads(text)["partitions"]}
    expected = [planned.get(number, [1, 2]) for number in range(4)]
    wait_until_all_know(cluster, topic, lambda replicas: replicas == expected)
    moved = replicas_of(topic)
    assert sorted(broker for replicas in moved for broker in replicas) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_topic_gets_more_replicas(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "1,2", cluster)
    done("cluster", "reassign", "--topic", topic, "--brokers", "1,2,3", "--replication-factor", 3)
    wait_until_all_know(cluster, topic, lambda found: [sorted(replicas) for replicas in found] == [[1, 2, 3]] * 2)


def test_a_move_to_a_broker_that_is_frozen_is_seen_and_called_off(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "1:2", cluster)
    # At this rate the copy takes minutes: it is under way until it is called off. The controller is needed for that.
    with RawClient(cluster.brokers[1]) as client:
        for _ in range(50):
            client.append(topic, batch_of(bytes(10_000)))
    frozen = 3 if cluster.controller == 4 else 4
    done("cluster", "reassign", "--topic", topic, "--replicas", f"1,{frozen}", "--no-wait", "--throttle", 1_000)
    cluster.pause(frozen)
    try:
        [row] = json.loads(done("cluster", "reassign", "--json"))
        assert (row["topic"], row["adding"], row["removing"]) == (topic, [frozen], [2])
        assert "Cancelled 1 move." in done("cluster", "reassign", "--cancel", "--topic", topic)
    finally:
        cluster.resume(frozen)
        done("cluster", "reassign", "--throttle", 0)
    done("cluster", "wait", "--brokers", 4, "--timeout", 60)
    wait_until_all_know(cluster, topic, lambda replicas: replicas == [[1, 2]])
    assert json.loads(done("cluster", "reassign", "--json")) == []


def test_what_is_not_there_is_told(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "1:2", cluster)
    assert (
        refused("cluster", "reassign", "--brokers", "1,9")
        == "broker 9 is not running; the running brokers are 1, 2, 3, 4"
    )
    assert refused("cluster", "reassign", "-t", "nowhere", "--brokers", "1").startswith("there is no topic 'nowhere'")
    told = refused("cluster", "reassign", "-t", f"{topic}:7", "--replicas", "1")
    assert told.startswith(f"topic '{topic}' has no partition 7; ")
    assert refused("cluster", "drain", 9) == "there is no broker 9: it is not running and is no replica of a partition"


def test_leaders_go_back_to_the_preferred_replicas(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "4:3", cluster)
    cluster.stop(4)
    wait_until(lambda: leaders_of(topic) == [3], "the other one leads")
    cluster.restart(4)
    done("cluster", "wait", "--brokers", 4, "--timeout", 60)
    done("cluster", "elect", "--topic", topic)
    wait_until(lambda: leaders_of(topic) == [4], "the preferred one leads")
    assert "no election is needed" in done("cluster", "elect", "--topic", topic)


def test_an_unclean_election_asks_first(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "4", cluster)
    assert "no election is needed" in done("cluster", "elect", "--topic", topic, "--unclean", "--yes")
    cluster.kill(4)
    try:
        wait_until(lambda: cluster.leader_of(topic) == -1, "it has no leader")
        assert (
            refused("cluster", "elect", "--topic", topic, "--unclean")
            == "not confirmed; nothing was changed (use --yes to skip the question)"
        )
    finally:
        cluster.restart(4)
    done("cluster", "wait", "--brokers", 4, "--timeout", 60)


def test_a_drained_broker_holds_nothing(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "4:1,4:2,1:4,2:3", cluster)
    plan = json.loads(done("cluster", "drain", 4, "--dry-run"))
    assert {row["partition"] for row in plan["partitions"] if row["topic"] == topic} == {0, 1, 2}
    assert "off broker 4; it can be stopped now" in done("cluster", "drain", 4)

    def held() -> tuple[int, int, int]:
        [broker] = [broker for broker in described()["brokers"] if broker["id"] == 4]
        return broker["replicas"], broker["leaders"], broker["bytes"]

    wait_until_all_know(
        cluster, topic, lambda found: all(len(set(replicas)) == 2 and 4 not in replicas for replicas in found)
    )
    wait_until(lambda: held() == (0, 0, 0), "it holds nothing, and its disk is empty as well")


def is_away(i: int) -> bool:
    return all(broker["address"] is None for broker in described()["brokers"] if broker["id"] == i)


def test_a_broker_that_runs_or_is_to_hold_something_is_not_forgotten(cluster: EmbeddedCluster, topic: str) -> None:
    create(topic, "3:4,4:3", cluster)
    assert refused("cluster", "unregister", 4) == "broker 4 is running; stop it first"
    [held] = [broker["replicas"] for broker in described()["brokers"] if broker["id"] == 4]
    cluster.kill(4)
    try:
        wait_until(lambda: is_away(4), "it is given up")
        assert refused("cluster", "unregister", 4) == (
            f"broker 4 is a replica of {held} partitions; move them first with: skep cluster drain 4"
        )
    finally:
        cluster.restart(4)
    done("cluster", "wait", "--brokers", 4, "--timeout", 60)


def test_a_broker_that_is_gone_for_good_is_forgotten(cluster: EmbeddedCluster, topic: str) -> None:
    done("cluster", "drain", 4)
    create(topic, "4:3", cluster)
    with RawClient(cluster.brokers[4]) as client:
        client.append(topic, batch_of(b"x"))
    files = cluster.broker(4).data_dir / f"{topic}-0"
    assert files.exists()
    cluster.kill(4)
    try:
        wait_until(lambda: is_away(4), "it is given up")
        done("topics", "delete", topic)
        forgotten, unknown = "Unregistered broker 4.\n", "Broker 4 is not registered; nothing to do.\n"
        # Brokers hear of a deleted topic one after the other, and any of them may be asked.
        wait_until(lambda: skep("cluster", "unregister", 4).stdout == forgotten, "what waited for it waits no more")
        wait_until(lambda: done("cluster", "unregister", 4) == unknown, "all have heard of that")
    finally:
        cluster.restart(4)
    done("cluster", "wait", "--brokers", 4, "--timeout", 60)
    wait_until(lambda: not files.exists(), "one that comes back all the same clears up after itself")
