"""``kafka-configs`` for users, clients and addresses: what is refused before a broker is asked."""

import pytest

from skep.cli.failures import UsageError
from skep.cli.kafka.kafka_configs import execute
from skep.cli.kafka.kafka_quotas import quota_row
from skep.cli.quotas.quota_admin import ClientQuota

HERE = ["--bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--describe --user a --topic t", "--topic cannot be used|cannot be combined"),
        ("--describe --entity-type users --entity-type topics", "topics cannot be combined"),
        ("--describe --entity-type users --entity-type users", "each once"),
        ("--describe --ip 10.0.0.1 --user a", "each once"),
        ("--describe --user a --entity-name b", "more entity names"),
        ("--alter --entity-type users --add-config producer_byte_rate=1", "must be specified with each"),
        ("--alter --user a", "At least one of --add-config"),
        ("--alter --user a --add-config producer_bytes=1", "producer_bytes is no quota of user"),
        ("--alter --ip-defaults --add-config producer_byte_rate=1", "there are connection_creation_rate"),
        ("--alter --client c --delete-config producer_bytes", "producer_bytes is no quota of client-id"),
        ("--alter --client c --add-config producer_byte_rate=much", "Cannot parse quota configuration value"),
        ("--describe --entity-type topics --entity-type brokers", "can be repeated only for users and clients"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags, told):
    with pytest.raises(UsageError, match=told):
        execute([*HERE, *flags.split()])


def test_quotas_are_shown_as_kafka_shows_them():
    quota = ClientQuota({"user": "alice", "client-id": None}, {"consumer_byte_rate": 5.0, "producer_byte_rate": 1024.0})
    assert quota_row(quota) == (
        "Quota configs for user-principal 'alice', the default client-id are "
        "consumer_byte_rate=5.0, producer_byte_rate=1024.0"
    )
