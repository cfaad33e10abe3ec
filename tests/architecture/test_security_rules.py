"""Rules that keep whole classes of known holes out, checked over the source and the tables of options."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.group_config import GROUP_OPTIONS
from skep.base.config.option import Option, OptionType, anything, declared
from skep.base.config.topic_config import TopicConfig
from tests.architecture.source_modules import modules

# CVE-2021-38153: credentials compared with ==, in a time that tells how much of them was right.

SECRET = re.compile(
    r"(^|_)(password|passwd|secret|proof|signature|digest|mac|hmac|stored_key|server_key|salted_password)s?($|_)"
)
SECRETS_OF_THEIR_TYPE = {"skep.security.sasl.password_checks": ("password",)}
"""Names of a ``Secret``, whose equality takes the same time wherever two differ."""


def secret_comparisons(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each secret that is compared with == or !=, or looked for in a collection."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or not any(
            isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for operator in node.ops
        ):
            continue
        for operand in (node.left, *node.comparators):
            name = operand.id if isinstance(operand, ast.Name) else getattr(operand, "attr", "")
            others = [other for other in (node.left, *node.comparators) if other is not operand]
            is_constant = all(isinstance(other, ast.Constant) and not other.value for other in others)
            if SECRET.search(name) and not is_constant:
                yield node.lineno, name


def test_secrets_are_compared_in_constant_time() -> None:
    found = [
        f"{path}:{line}: {name}"
        for module, path in modules().items()
        for line, name in secret_comparisons(ast.parse(path.read_text()))
        if name not in SECRETS_OF_THEIR_TYPE.get(module, ())
    ]
    assert found == [], "use hmac.compare_digest"


@pytest.mark.parametrize(
    "code", ["password == other", "a.stored_key != b", "x if proof in proofs else y", "digest == b'abc'"]
)
def test_a_comparison_of_secrets_is_found(code: str) -> None:
    assert list(secret_comparisons(ast.parse(code)))


def test_an_empty_password_may_be_asked_for() -> None:
    assert list(secret_comparisons(ast.parse("password == ''"))) == []


# CVE-2023-25194, 2025-27818, 2025-27819 (login modules), RocketMQ CVE-2023-33246, 2023-37582 (a shell, a path to
# write), 2025-27817 (a URL that reads files): what a request can set must not be the name of something that runs.

TEXT = (OptionType.STRING, OptionType.LIST, OptionType.PASSWORD)
FREE_TEXTS = {
    "errors.deadletterqueue.topic.name.prefix": "the beginning of a topic's name",
    "ssl.cipher.suites": "names that OpenSSL knows",
}
"""The dynamic options that accept any text, and what it is used as. None of it is written to, run or imported."""
SUSPICIOUS = re.compile(
    r"(^|\.)(dirs?|directory|path|file|class|classes|module|command|script|url|endpoint|shell)($|\.)"
)
NOT_SUSPICIOUS = {"file.delete.delay.ms": "a time", "ssl.endpoint.identification.algorithm": "https or nothing"}


def options() -> list[Option]:
    tables = (declared(BrokerConfig), declared(TopicConfig), GROUP_OPTIONS)
    return [option for table in tables for option in table.values()]


def test_a_text_that_a_request_can_set_is_checked_or_harmless() -> None:
    unchecked = {
        option.name for option in options() if option.dynamic and option.type in TEXT and option.check is anything
    }
    assert unchecked == FREE_TEXTS.keys()


def test_paths_urls_and_classes_are_read_at_start_only() -> None:
    found = {option.name for option in options() if option.dynamic and SUSPICIOUS.search(option.name)}
    assert found == NOT_SUSPICIOUS.keys()


def test_what_a_broker_trusts_is_set_at_start_only() -> None:
    """A client with ALTER_CONFIGS could otherwise make itself a super user, or name its own issuer of tokens."""
    by_name = {option.name: option for option in options()}
    fixed = re.compile(
        r"super\.users|authorizer\.|allow\.everyone|sasl\.jaas|sasl\.oauthbearer\.|skep\.insecure|listeners|"
        r"ssl\.truststore|ssl\.keystore|ssl\.principal"
    )
    found = [name for name in by_name if fixed.search(name)]
    assert len(found) >= 5
    assert [name for name in found if by_name[name].dynamic] == []


def test_what_is_secret_is_never_told() -> None:
    secret = re.compile(r"password|jaas|keystore\.key|secret")
    told = [option.name for option in options() if secret.search(option.name) and not option.is_sensitive]
    assert told == []


# No module is imported, no program run by a name that comes from outside.

MAY_IMPORT_BY_NAME = {
    "skep": "the table of lazily imported names",
    "skep.cli.main": "the table of commands",
    "skep.client.arrow_libraries": "pyarrow and what decodes to it",
    "skep.coordination.groups.classic.consumer_protocol": "kio's module of each version",
    "skep.records.kernel_compiler": "numba",
    "skep.replication.upkeep.kernel_compilation": "the table of kernels",
}


def _imports_by_name(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ("import_module", "__import__", "spec_from_file_location"):
                return True
    return False


def test_modules_are_imported_by_name_from_tables_only() -> None:
    found = {
        name
        for name, path in modules().items()
        if name.split(".")[0] == "skep" and not name.startswith("skep.cli.spark.") and _imports_by_name(path)
    }
    assert found == MAY_IMPORT_BY_NAME.keys()


def test_no_shell_runs_anything() -> None:
    shell = re.compile(
        r"shell\s*=\s*True|os\.system\(|os\.popen\(|create_subprocess_shell|pickle\.loads?\(|yaml\.load\("
    )
    assert [name for name, path in modules().items() if shell.search(path.read_text())] == []
