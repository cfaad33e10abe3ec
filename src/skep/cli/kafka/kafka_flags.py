"""The flags that the commands under Kafka's names share. Errors are reported in one line.

All of Kafka's names of a flag are kept, old and new (``--property`` and ``--formatter-property``), because people copy
commands from documents of any age.
"""

import argparse
import os
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from skep.base.environment_variables import COMMAND_CONFIG
from skep.cli.command_config import read_properties
from skep.cli.connection import REQUEST_TIMEOUT_S, Cluster, pairs
from skep.cli.failures import UsageError

JAVA_STRINGS = (
    "org.apache.kafka.common.serialization.StringDeserializer",
    "org.apache.kafka.common.serialization.ByteArrayDeserializer",
)


class KafkaFlags(argparse.ArgumentParser):
    """A parser with the flags that all of Kafka's tools have. It raises UsageError instead of printing its usage."""

    def __init__(self, program: str, description: str, examples: str) -> None:
        super().__init__(
            prog=program,
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("--version", action="version", version=f"{program} of Skep")
        self.add_argument("--bootstrap-server", metavar="HOST:PORT", help="broker addresses, separated by commas")
        self.add_argument("--command-config", metavar="FILE", help="a file of client properties")
        self.add_argument("--zookeeper", help=argparse.SUPPRESS)
        self.set_defaults(client_config=None, client_property=None)

    def add_client_flags(self, client: str) -> None:
        """Adds the flags for properties of a ``producer`` or ``consumer``, under Kafka's old and new names."""
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
        """Adds the flags for the text format of records: properties of a line ``reader`` or of a ``formatter``."""
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
        """Parses the flags. ``fallback`` is an older flag that can replace --bootstrap-server."""
        flags = self.parse_args(arguments)
        if flags.zookeeper is not None:
            raise UsageError(
                "--zookeeper was removed from Kafka; use --bootstrap-server HOST:PORT with a broker's address"
            )
        flags.bootstrap_server = flags.bootstrap_server or getattr(flags, fallback)
        if flags.bootstrap_server is None:
            raise UsageError("--bootstrap-server must be specified")
        return flags


def cluster_from(flags: argparse.Namespace, request_timeout_s: float = REQUEST_TIMEOUT_S) -> Cluster:
    """Returns the cluster of the flags. Properties on the command line override those in a file."""
    if flags.command_config and flags.client_config:
        raise UsageError("--command-config and its older name cannot be specified together")
    settings = read_properties(flags.command_config or flags.client_config or os.environ.get(COMMAND_CONFIG))
    settings |= pairs(flags.client_property, "--command-property")
    return Cluster(flags.bootstrap_server, settings, request_timeout_s)


def form_properties(flags: argparse.Namespace) -> dict[str, str]:
    return read_properties(flags.form_config) | pairs(flags.form_property, "--property")


def truth(properties: Mapping[str, str], name: str, default: bool = False) -> bool:
    return properties[name].strip().lower() == "true" if name in properties else default


def topics_matching(names: Iterable[str], pattern: str | None) -> list[str]:
    """Returns the topics that match by Kafka's rule: a regular expression for the whole name; a comma means "or"."""
    if pattern is None:
        return sorted(names)
    try:
        wanted = re.compile(pattern.strip().replace(",", "|").replace(" ", ""))
    except re.error as error:
        raise UsageError(f"'{pattern}' is not a regular expression: {error}") from None
    return sorted(name for name in names if wanted.fullmatch(name))


def only_java_strings(flags: argparse.Namespace, *names: str) -> None:
    """Raises UsageError for a Java class, except for the two deserializers that keep the bytes as they are."""
    for name in names:
        value = getattr(flags, name)
        if value is not None and value not in JAVA_STRINGS:
            raise no_java(f"--{name.replace('_', '-')}", value)


def no_java(flag: str, value: str) -> UsageError:
    return UsageError(f"{flag} {value}: this command cannot load Java classes; omit {flag}")
