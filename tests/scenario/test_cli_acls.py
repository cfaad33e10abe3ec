"""``skep acls`` and ``kafka-acls`` against a real broker."""

import json
import sys
from collections.abc import Callable, Iterator

import pytest

from skep.cli import main
from skep.cli.failures import run
from skep.cli.kafka import kafka_acls
from skep.testing import EmbeddedBroker

Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options={"authorizer.class.name": "skep", "super.users": "User:ANONYMOUS"}) as running:
        yield running


@pytest.fixture
def command(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Command:
    """Runs a command line and gives its exit code and what it printed."""

    def run_line(line: str) -> tuple[int, str]:
        program, *arguments = line.split()
        if program == "kafka-acls":
            code = run(
                program, lambda: kafka_acls.execute([*arguments, "--bootstrap-server", broker.bootstrap_servers])
            )
        else:
            monkeypatch.setattr(sys, "argv", [program, *arguments, "--bootstrap-server", broker.bootstrap_servers])
            with pytest.raises(SystemExit) as exited:
                main.main()
            code = exited.value.code or 0
        printed = capfdbinary.readouterr()
        return code, (printed.out + printed.err).decode()

    return run_line


def rules(text: str) -> set[tuple[str, ...]]:
    return {
        (one["resource_type"], one["name"], one["pattern_type"], one["principal"], one["operation"], one["permission"])
        for one in json.loads(text)
    }


def test_a_producer_and_a_consumer_get_what_they_need(command: Command) -> None:
    assert command("skep acls add --allow User:a --producer --topic made --transactional-id tx")[0] == 0
    assert command("skep acls add --allow User:b --consumer --topic made --group g --prefixed")[0] == 0
    assert rules(command("skep acls list --principal User:a --json")[1]) == {
        ("topic", "made", "literal", "User:a", "write", "allow"),
        ("topic", "made", "literal", "User:a", "describe", "allow"),
        ("topic", "made", "literal", "User:a", "create", "allow"),
        ("transactional_id", "tx", "literal", "User:a", "write", "allow"),
        ("transactional_id", "tx", "literal", "User:a", "describe", "allow"),
    }
    assert rules(command("skep acls list --principal User:b --json")[1]) == {
        ("topic", "made", "prefixed", "User:b", "read", "allow"),
        ("topic", "made", "prefixed", "User:b", "describe", "allow"),
        ("group", "g", "prefixed", "User:b", "read", "allow"),
    }
    assert "User:b" in command("skep acls list --topic made-up")[1]
    assert "User:a" not in command("skep acls list --topic made-up")[1]
    assert command("skep acls remove --allow User:a --producer --topic made --transactional-id tx")[0] == 0
    assert rules(command("skep acls list --principal User:a --json")[1]) == set()


def test_check_says_which_rule_decides(command: Command) -> None:
    command("skep acls add --allow User:c --operation write --topic pay --prefixed")
    command("skep acls add --deny User:c --operation write --topic payroll --host 10.0.0.0/8")
    check = "skep acls check --as User:c --operation write --topic"
    assert command(f"{check} payments") == (0, "allowed: ALLOW WRITE to User:c from * on TOPIC:PREFIXED:pay\n")
    assert command(f"{check} payroll --host 10.1.2.3") == (
        1,
        "denied: DENY WRITE to User:c from 10.0.0.0/8 on TOPIC:LITERAL:payroll\n",
    )
    assert command(f"{check} other") == (1, "denied: no ACL allows it\n")
    assert command("skep acls check --as User:ANONYMOUS --operation alter --cluster") == (0, "allowed: super.users\n")
    code, text = command(f"{check} other --json")
    assert (code, json.loads(text)["allowed"]) == (1, False)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("skep acls add --allow alice --topic t", "TYPE:NAME"),
        ("skep acls add --topic t", "--allow"),
        ("skep acls add --allow User:a", "--topic"),
        ("skep acls add --allow User:a --topic t --operation fly", "no operation 'fly'"),
        ("skep acls add --allow User:a --topic t --host 10.0.0.0/77", "10.0.0.0/77"),
        ("skep acls add --allow User:a --consumer --topic t", "--group"),
        ("skep acls remove --operation read --topic t", "--allow"),
        ("skep acls check --as User:a --operation read", "one of --topic"),
        ("kafka-acls --add --topic t", "--allow-principal"),
        ("kafka-acls --add --list --topic t", "exactly one action"),
        ("kafka-acls --add --allow-principal User:a --topic t --resource-pattern-type match", "not valid"),
        ("kafka-acls --add --allow-principal User:a --consumer --topic t", "--group"),
    ],
)
def test_bad_input_is_one_clear_line(command: Command, line: str, problem: str) -> None:
    code, text = command(line)
    assert code != 0
    assert problem in text
    assert "Traceback" not in text


def test_kafkas_tool_adds_lists_and_removes(command: Command) -> None:
    line = (
        "kafka-acls --add --allow-principal User:d --allow-host 10.0.0.1 --operation Read --operation DescribeConfigs"
    )
    code, added = command(f"{line} --topic seen")
    assert code == 0
    resource = "`ResourcePattern(resourceType=TOPIC, name=seen, patternType=LITERAL)`"
    rule = "(principal=User:d, host=10.0.0.1, operation=READ, permissionType=ALLOW)"
    assert added.splitlines()[0] == f"Adding ACLs for resource {resource}: "
    assert f" \t{rule}" in added.splitlines()
    assert f"Current ACLs for resource {resource}: " in command("kafka-acls --list --topic seen")[1].splitlines()
    assert command("kafka-acls --remove --topic seen --force")[0] == 0
    assert command("kafka-acls --list --topic seen") == (0, "")


def test_kafkas_tool_knows_producers_and_match(command: Command) -> None:
    command("kafka-acls --add --allow-principal User:e --producer --idempotent --topic wrote")
    command("kafka-acls --add --deny-principal User:e --operation All --topic wro --resource-pattern-type prefixed")
    listed = command("kafka-acls --list --topic wrote --resource-pattern-type match --principal User:e")[1]
    assert "operation=CREATE, permissionType=ALLOW" in listed
    assert "operation=ALL, permissionType=DENY" in listed
    assert "IDEMPOTENT_WRITE" in command("kafka-acls --list --cluster")[1]
