"""What the commands under Kafka's names share: flags as Kafka's tools take them, and refusals in one line.

Kafka's own words for its flags are kept, also where it has two for one thing (``--property`` and
``--formatter-property``): people copy commands out of documents of every age.
"""

import argparse
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from skep.cli.connection import REQUEST_TIMEOUT_S, Cluster, pairs
from skep.cli.failures import CommandError, UsageError

JAVA_STRINGS = (
    "org.apache.kafka.common.serialization.StringDeserializer",
    "org.apache.kafka.common.serialization.ByteArrayDeserializer",
)


class KafkaFlags(argparse.ArgumentParser):
    """A parser that refuses in one line and knows the flags that all of Kafka's tools have."""

    def __init__(self, program: str, description: str, examples: str) -> None:
        super().__init__(
            prog=program,
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("--version", action="version", version=f"{program} of Skep")
        self.add_argument("--bootstrap-server", metavar="HOST:PORT", help="the server(s) to connect to")
        self.add_argument("--command-config", metavar="FILE", help="a file of client properties")
        self.add_argument("--zookeeper", help=argparse.SUPPRESS)
        self.set_defaults(client_config=None, client_property=None)

    def add_client_flags(self, client: str) -> None:
        """The flags for properties of a ``producer`` or ``consumer``, in the two namings that Kafka has had."""
        self.add_argument(
            f"--{client}-property",
            "--command-property",
            dest="client_property",
            action="append",
            metavar="NAME=VALUE",
            help=f"a property of the {client}",
        )
        self.add_argument(f"--{client}.config", dest="client_config", metavar="FILE", help=argparse.SUPPRESS)

    def add_form_flags(self, form: str, names: str) -> None:
        """The flags that say how records look as text: properties of a ``reader`` of lines or of a ``formatter``."""
        self.add_argument(
            "--property",
            f"--{form}-property",
            dest="form_property",
            action="append",
            metavar="NAME=VALUE",
            help=names,
        )
        self.add_argument(f"--{form}-config", dest="form_config", metavar="FILE", help="a file of such properties")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse(self, arguments: list[str] | None, *, fallback: str = "bootstrap_server") -> argparse.Namespace:
        """The flags; ``fallback`` is an older flag that may stand for --bootstrap-server."""
        flags = self.parse_args(arguments)
        if flags.zookeeper is not None:
            raise UsageError("--zookeeper is gone from Kafka; use --bootstrap-server HOST:PORT, a broker's address")
        flags.bootstrap_server = flags.bootstrap_server or getattr(flags, fallback)
        if flags.bootstrap_server is None:
            raise UsageError("--bootstrap-server must be specified")
        return flags


def cluster_from(flags: argparse.Namespace, request_timeout_s: float = REQUEST_TIMEOUT_S) -> Cluster:
    """The cluster that the flags name; single properties win over those of a file."""
    if flags.command_config and flags.client_config:
        raise UsageError("--command-config and the older flag for the same file cannot be specified together")
    settings = read_properties(flags.command_config or flags.client_config)
    settings |= pairs(flags.client_property, "a property")
    return Cluster(flags.bootstrap_server, settings, request_timeout_s)


def form_properties(flags: argparse.Namespace) -> dict[str, str]:
    return read_properties(flags.form_config) | pairs(flags.form_property, "a property")


def read_properties(path: str | None) -> dict[str, str]:
    """A file of ``name=value`` lines, with # or ! before comments, as Java's Properties reads the simple ones."""
    if path is None:
        return {}
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    lines = (line.strip() for line in text.splitlines())
    found = pairs([line for line in lines if line and line[0] not in "#!"], f"a line of {path}")
    return {name: value.strip() for name, value in found.items()}


def truth(properties: Mapping[str, str], name: str, default: bool = False) -> bool:
    return properties[name].strip().lower() == "true" if name in properties else default


def topics_matching(names: Iterable[str], pattern: str | None) -> list[str]:
    """Topics by Kafka's rule: a regular expression over the whole name, in which a comma means 'or'."""
    if pattern is None:
        return sorted(names)
    try:
        wanted = re.compile(pattern.strip().replace(",", "|").replace(" ", ""))
    except re.error as error:
        raise UsageError(f"'{pattern}' is not a regular expression: {error}") from None
    return sorted(name for name in names if wanted.fullmatch(name))


def only_java_strings(flags: argparse.Namespace, *names: str) -> None:
    """Classes of Java cannot be loaded; the two that leave the bytes as they are need not be."""
    for name in names:
        value = getattr(flags, name)
        if value is not None and value not in JAVA_STRINGS:
            raise UsageError(f"--{name.replace('_', '-')} {value}: Java classes cannot be loaded here")
