"""``skep serve --brokers N``: the options of each of the brokers, made from those of one."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from skep.base.addresses import parse_address, show_address
from skep.base.config.broker_config import read_broker_config
from skep.base.errors import OptionError, StartupError
from skep.base.reserved_port import ReservedPort

METADATA_FILE = "metadata.sqlite"
_LOCK = ".lock"
_OWN_DIRECTORY = re.compile(r"broker-\d+")


def options_of_brokers(texts: Mapping[str, str], count: int) -> list[dict[str, str]]:
    """One set of options for each: ids and ports count up, each has a directory of its own, the metadata is shared."""
    config = read_broker_config(texts)
    directory = os.path.abspath(config.log_dirs)
    listen = parse_address("listeners", config.listeners)
    told = parse_address("advertised.listeners", config.advertised_listeners) if config.advertised_listeners else None
    brokers = []
    for number in range(count):
        node_id = config.node_id + number
        own = {
            "node.id": str(node_id),
            "listeners": _counted_up("listeners", listen, number),
            "log.dirs": os.path.join(directory, f"broker-{node_id}"),
            "skep.metadata": config.metadata or f"sqlite:{os.path.join(directory, METADATA_FILE)}",
        }
        if told is not None:
            own["advertised.listeners"] = _counted_up("advertised.listeners", told, number)
        brokers.append({**texts, **own})
    return brokers


def _counted_up(option: str, address: tuple[str, int], number: int) -> str:
    """Port 0 stays 0: any port that is free."""
    host, port = address
    if port and port + number > 65535:
        raise OptionError(f"{option}={show_address(host, port)}: there is no port {port + number} for another broker")
    return show_address(host, port + number if port else 0)


def with_ports(brokers: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[ReservedPort]]:
    """Any free port becomes one that a broker keeps when it is started again; what holds it, to be kept as long."""
    reserved = []
    chosen = []
    for broker in brokers:
        host, port = parse_address("listeners", broker["listeners"])
        if port == 0:
            try:
                reserved.append(ReservedPort(host))
            except OSError as error:
                raise StartupError(f"cannot listen on {show_address(host, port)}: {str(error).lower()}") from None
            port = reserved[-1].number
        chosen.append({**broker, "listeners": show_address(host, port)})
    return chosen, reserved


def check_directory(path: str, *, several: bool) -> None:
    """StartupError when there is data in ``path`` of one broker where several are to start, or the other way round.

    To a single broker ``broker-1`` would be partition 1 of a topic that it does not know, which it clears away; and
    several would find the metadata of topics without their data.
    """
    base = Path(path)
    if several and (base / _LOCK).exists():
        raise StartupError(f"{path} has the data of a single broker: give the --brokers another --data-dir")
    if not several and any(map(_has_broker, _directories(base))):
        raise StartupError(f"{path} has the data of several brokers: start them with --brokers, as before")


def _directories(base: Path) -> list[Path]:
    try:
        return [path for path in base.iterdir() if _OWN_DIRECTORY.fullmatch(path.name)]
    except OSError:
        return []


def _has_broker(directory: Path) -> bool:
    """A partition of a topic named ``broker`` has no lock file."""
    return (directory / _LOCK).exists()
