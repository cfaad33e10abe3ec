"""The options of the brokers that ``skep serve --brokers N`` starts."""

from pathlib import Path

import pytest

from skep.base.errors import OptionError, StartupError
from skep.cli.serve.local_cluster import (
    check_directory,
    missing_directories,
    options_of_brokers,
    remove_unused,
    with_ports,
)


def test_ids_ports_and_directories_count_up_and_the_metadata_is_shared() -> None:
    brokers = options_of_brokers({"log.dirs": "/data", "num.partitions": "4"}, 3)
    assert [broker["node.id"] for broker in brokers] == ["1", "2", "3"]
    assert [broker["listeners"] for broker in brokers] == ["127.0.0.1:9092", "127.0.0.1:9093", "127.0.0.1:9094"]
    assert [broker["log.dirs"] for broker in brokers] == ["/data/broker-1", "/data/broker-2", "/data/broker-3"]
    assert {broker["skep.metadata"] for broker in brokers} == {"sqlite:/data/metadata.sqlite"}
    assert {broker["num.partitions"] for broker in brokers} == {"4"}
    assert not any("advertised.listeners" in broker for broker in brokers)


def test_a_second_machine_begins_with_its_own_id() -> None:
    brokers = options_of_brokers({"log.dirs": "/data", "node.id": "4", "skep.metadata": "zk://z:2181/skep"}, 2)
    assert [broker["log.dirs"] for broker in brokers] == ["/data/broker-4", "/data/broker-5"]
    assert {broker["skep.metadata"] for broker in brokers} == {"zk://z:2181/skep"}


def test_the_address_that_clients_are_told_counts_up_too() -> None:
    texts = {
        "listeners": "0.0.0.0:9092",
        "skep.insecure": "true",
        "advertised.listeners": "PLAINTEXT://broker.example.org:19092",
    }
    brokers = options_of_brokers(texts, 2)
    assert [broker["advertised.listeners"] for broker in brokers] == [
        "PLAINTEXT://broker.example.org:19092",
        "PLAINTEXT://broker.example.org:19093",
    ]


def test_an_ipv6_address_keeps_its_brackets() -> None:
    assert options_of_brokers({"listeners": "[::1]:9092"}, 2)[1]["listeners"] == "[::1]:9093"


def test_any_free_port_becomes_a_certain_one_for_each() -> None:
    brokers, reserved = with_ports(options_of_brokers({"listeners": "127.0.0.1:0"}, 3))
    try:
        ports = {broker["listeners"] for broker in brokers}
        assert len(ports) == 3
        assert ports == {f"127.0.0.1:{port.number}" for port in reserved}
    finally:
        for port in reserved:
            port.release()


def test_a_port_that_was_named_is_left_to_the_broker() -> None:
    brokers = options_of_brokers({}, 2)
    assert with_ports(brokers) == (brokers, [])


def test_ports_end_somewhere() -> None:
    with pytest.raises(OptionError, match="broker number 2 would need port 65536"):
        options_of_brokers({"listeners": "127.0.0.1:65535"}, 2)


@pytest.mark.parametrize("texts", [{"num.partition": "4"}, {"listeners": "nowhere"}, {"advertised.listeners": "x"}])
def test_a_bad_option_is_told_before_any_broker_starts(texts: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(iter(texts))):
        options_of_brokers(texts, 2)


def test_the_data_of_a_single_broker_is_not_taken_for_that_of_several(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    check_directory(str(tmp_path), several=False)
    with pytest.raises(StartupError, match="has the data of a single broker"):
        check_directory(str(tmp_path), several=True)


def test_the_data_of_several_brokers_is_not_taken_for_partitions_of_one(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1" / ".lock").touch()
    check_directory(str(tmp_path), several=True)
    with pytest.raises(StartupError, match="start them with --brokers"):
        check_directory(str(tmp_path), several=False)


def test_a_topic_may_be_called_broker(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1" / "00000000000000000000.log").touch()
    check_directory(str(tmp_path), several=False)


def test_a_directory_that_is_not_there_yet_is_right_for_both(tmp_path: Path) -> None:
    for several in (False, True):
        check_directory(str(tmp_path / "new"), several=several)


def test_what_brokers_created_before_one_of_them_failed_is_removed(tmp_path: Path) -> None:
    created = missing_directories(str(tmp_path / "new" / "data"))
    assert created == [tmp_path / "new" / "data", tmp_path / "new"]
    (tmp_path / "new" / "data" / "broker-1").mkdir(parents=True)
    (tmp_path / "new" / "data" / "broker-1" / ".lock").touch()
    remove_unused(created)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_existed_is_not_removed(tmp_path: Path) -> None:
    remove_unused(missing_directories(str(tmp_path)))
    assert tmp_path.exists()


def test_records_that_a_client_wrote_before_another_broker_failed_are_not_removed(tmp_path: Path) -> None:
    created = missing_directories(str(tmp_path / "data"))
    partition = tmp_path / "data" / "broker-1" / "orders-0"
    partition.mkdir(parents=True)
    (partition / "00000000000000000000.log").touch()
    remove_unused(created)
    assert partition.exists()
