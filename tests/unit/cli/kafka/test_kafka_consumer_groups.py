import pytest

from skep.cli.failures import CommandError, UsageError
from skep.cli.kafka import kafka_consumer_groups, kafka_transactions

BROKER = ["--bootstrap-server", "127.0.0.1:1"]
RESET = [*BROKER, "--reset-offsets", "--group", "g"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--list"], "--bootstrap-server must be specified"),
        (BROKER, "exactly one action: --list, --describe"),
        ([*BROKER, "--list", "--describe"], "exactly one action"),
        ([*BROKER, "--list", "--group", "g"], "--group cannot be used with --list"),
        ([*BROKER, "--describe"], "--describe takes one of these options: --group, --all-groups"),
        ([*BROKER, "--describe", "--group", "g", "--all-groups"], "takes one of these options"),
        ([*BROKER, "--describe", "--group", "g", "--members", "--state"], "at most one of these options"),
        ([*BROKER, "--describe", "--group", "g", "--state", "Stable"], "does not take a value for --state"),
        ([*BROKER, "--describe", "--group", "g", "--to-offset", "0"], "--to-offset cannot be used with --describe"),
        ([*BROKER, "--delete"], "--delete takes one of these options"),
        ([*BROKER, "--delete", "--group", "g", "--topic", "t"], "--topic cannot be used with --delete"),
        ([*BROKER, "--delete-offsets", "--group", "g"], "takes one --group and a --topic"),
        ([*RESET, "--topic", "t"], "give exactly one destination"),
        ([*RESET, "--topic", "t", "--to-earliest", "--to-latest"], "give exactly one destination"),
        ([*RESET, "--topic", "t", "--to-earliest", "--from-file", "f"], "give exactly one destination"),
        ([*RESET, "--to-earliest"], "name the partitions to reset"),
        ([*RESET, "--to-earliest", "--topic", "t", "--all-topics"], "name the partitions to reset"),
        ([*RESET, "--from-file", "f", "--topic", "t"], "--from-file names the partitions"),
        ([*RESET, "--to-earliest", "--topic", "t", "--execute", "--dry-run"], "only accepts one of --execute"),
        ([*RESET, "--topic", "t", "--to-datetime", "yesterday"], "is not a time"),
        ([*RESET, "--topic", "t", "--by-duration", "an hour"], "is not a duration"),
        ([*RESET, "--topic", "t", "--shift-by", "x"], "invalid int value"),
    ],
)
def test_kafka_consumer_groups_refuses_flags_that_do_not_go_together(arguments: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        kafka_consumer_groups.execute(arguments)
    assert "\n" not in str(refused.value)


def test_a_time_without_a_zone_is_utc_as_in_kafkas_tool() -> None:
    assert kafka_consumer_groups.utc_moment("2024-05-01T12:00:00.000") == 1_714_564_800_000
    assert kafka_consumer_groups.utc_moment("2024-05-01T14:00:00+02:00") == 1_714_564_800_000


def test_a_regular_expression_is_checked_without_a_broker(capfd: pytest.CaptureFixture[str]) -> None:
    kafka_consumer_groups.execute(["--validate-regex", "orders-.*"])
    assert capfd.readouterr().out == "The regular expression `orders-.*` is valid.\n"
    with pytest.raises(CommandError, match="is invalid: "):
        kafka_consumer_groups.execute(["--validate-regex", "(orders"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (BROKER, "COMMAND"),
        (["list"], "--bootstrap-server must be specified"),
        ([*BROKER, "describe"], "--transactional-id"),
        ([*BROKER, "abort", "--topic", "t"], "--partition"),
        ([*BROKER, "abort", "--topic", "t", "--partition", "0"], "identified either with --start-offset"),
        ([*BROKER, "abort", "--topic", "t", "--partition", "0", "--producer-id", "1"], "identified either with"),
        ([*BROKER, "find-hanging"], "either --topic or --broker-id"),
        ([*BROKER, "find-hanging", "--broker-id", "1", "--partition", "0"], "requires --topic"),
        ([*BROKER, "lst"], "invalid choice"),
    ],
)
def test_kafka_transactions_refuses_flags_that_do_not_go_together(arguments: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        kafka_transactions.execute(arguments)
    assert "\n" not in str(refused.value)
