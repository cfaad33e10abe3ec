"""``skep serve --brokers N``: the options of N brokers on one machine, derived from the options of one."""

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from skep.base.addresses import NamedAddress, parse_addresses, show_address
from skep.base.config.broker_config import read_broker_config
from skep.base.config.listeners import read_listeners
from skep.base.errors import OptionError, StartupError
from skep.base.reserved_port import ReservedPort

METADATA_FILE = "metadata.sqlite"
_LOCK = ".lock"
_OWN_DIRECTORY = re.compile(r"broker-\d+")


def options_of_brokers(texts: Mapping[str, str], count: int) -> list[dict[str, str]]:
    """Returns the options of each broker: ids and ports count up, directories are separate, metadata is shared."""
    config = read_broker_config(texts)
    directory = os.path.abspath(config.log_dirs)
    read_listeners(config)
    listen = parse_addresses("listeners", config.listeners)
    advertised = config.advertised_listeners and parse_addresses("advertised.listeners", config.advertised_listeners)
    brokers = []
    for number in range(count):
        node_id = config.node_id + number
        own = {
            "node.id": str(node_id),
            "listeners": _counted_up("listeners", listen, number),
            "log.dirs": os.path.join(directory, f"broker-{node_id}"),
            "skep.metadata": config.cluster.metadata or f"sqlite:{os.path.join(directory, METADATA_FILE)}",
        }
        if advertised:
            own["advertised.listeners"] = _counted_up("advertised.listeners", advertised, number)
        brokers.append({**texts, **own})
    return brokers


def _counted_up(option: str, addresses: list[NamedAddress], number: int) -> str:
    """Returns the addresses with their ports plus ``number``. Port 0, any free port, stays 0.

    Several listeners count up in steps of their number, so that none meets another's port.
    """
    more = number * len(addresses)
    for one in addresses:
        if one.port and one.port + more > 65535:
            raise OptionError(
                f"{option}={one}: broker number {number + 1} would need port {one.port + more}, and the last port is "
                "65535; choose a lower port"
            )
    return ",".join(str(one._replace(port=one.port + more if one.port else 0)) for one in addresses)


def with_ports(brokers: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[ReservedPort]]:
    """Replaces port 0 by a reserved port, which the broker keeps over restarts.

    Returns the options, and the reservations to hold as long as the brokers run.
    """
    reserved = []
    chosen = []
    for broker in brokers:
        addresses = []
        for one in parse_addresses("listeners", broker["listeners"]):
            if one.port == 0:
                try:
                    reserved.append(ReservedPort(one.host))
                except OSError as error:
                    shown = show_address(one.host, one.port)
                    raise StartupError(f"cannot listen on {shown}: {str(error).lower()}") from None
                one = one._replace(port=reserved[-1].number)
            addresses.append(str(one))
        chosen.append({**broker, "listeners": ",".join(addresses)})
    return chosen, reserved


def check_directory(path: str, *, several: bool) -> None:
    """Raises StartupError if ``path`` has the data of one broker and several are to start, or the other way round.

    A single broker would take ``broker-1`` for partition 1 of an unknown topic and delete it. Several brokers would
    find the metadata of topics without their data.
    """
    base = Path(path)
    if several and (base / _LOCK).exists():
        raise StartupError(f"{path} has the data of a single broker; use another --data-dir with --brokers")
    if not several and any(map(_has_broker, _directories(base))):
        raise StartupError(f"{path} has the data of several brokers; start them with --brokers")


def missing_directories(path: str) -> list[Path]:
    """Returns the directories that a start would create: ``path`` if it does not exist, and its missing parents."""
    base = Path(path)
    return [directory for directory in (base, *base.parents) if not directory.exists()]


def remove_unused(created: list[Path]) -> None:
    """Removes what brokers created that did not all start, the data directory first.

    One of them may have been reachable for a moment. If it has a segment file, a client has written to it, and
    everything stays.
    """
    if not created or any(created[0].rglob("*.log")):
        return
    shutil.rmtree(created[0], ignore_errors=True)
    with contextlib.suppress(OSError):
        for directory in created[1:]:
            directory.rmdir()


def _directories(base: Path) -> list[Path]:
    try:
        return [path for path in base.iterdir() if _OWN_DIRECTORY.fullmatch(path.name)]
    except OSError:
        return []


def _has_broker(directory: Path) -> bool:
    """Returns whether it is a broker's data directory. A partition of a topic named ``broker`` has no lock file."""
    return (directory / _LOCK).exists()
