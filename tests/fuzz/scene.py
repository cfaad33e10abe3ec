"""A broker with a witness on it, and what tests of bad input look at: log lines, memory, whether anybody noticed."""

import contextlib
import os
from collections.abc import Iterator, Mapping

import psutil

from skep.testing import EmbeddedBroker
from tests.fuzz.witness import Witness
from tests.raw_client import RawClient
from tests.waiting import wait_until

MEBIBYTE = 1 << 20
UNHURRIED = {"skep.loop.delay.warn.ms": "600000"}
"""On a busy machine the broker logs that its event loop was late. Tests count the lines about what they do."""


class Scene:
    """One broker with its witness; see ``unharmed`` for what a test promises by using it."""

    def __init__(self, broker: EmbeddedBroker, witness: Witness) -> None:
        self.broker = broker
        self.witness = witness
        self._process = psutil.Process(broker.pid)
        self._seen_of_log = 0

    @property
    def rss(self) -> int:
        return int(self._process.memory_info().rss)

    def forget_peak(self) -> None:
        with open(f"/proc/{self.broker.pid}/clear_refs", "w") as refs:
            refs.write("5")

    @property
    def peak_rss(self) -> int:
        """The most memory that the broker had at any moment since ``forget_peak``."""
        with open(f"/proc/{self.broker.pid}/status") as status:
            [peak] = [line for line in status if line.startswith("VmHWM")]
        return int(peak.split()[1]) * 1024

    def client(self) -> RawClient:
        return RawClient(self.broker.bootstrap_servers, client_id="hostile")

    def new_lines(self) -> list[str]:
        """What the broker has logged since the last call."""
        log = self.broker.log
        new, self._seen_of_log = log[self._seen_of_log :], len(log)
        return new.splitlines()

    def lines_about(self, client: RawClient) -> list[str]:
        """The lines that name the client's address; waits for the first of them."""
        host, port = client.socket.getsockname()

        def lines() -> list[str]:
            return [line for line in self.broker.log.splitlines() if f"{host}:{port}:" in line]

        return wait_until(lines, f"a log line about {host}:{port}")

    def expect_hang_up(self, client: RawClient, reason: str = "") -> None:
        """The broker closes the connection and says so once."""
        assert client.is_closed()
        [line] = self.lines_about(client)
        assert " WARNING closed the connection of " in line
        assert reason in line

    @contextlib.contextmanager
    def unharmed(self, max_growth_bytes: int = 16 * MEBIBYTE) -> Iterator[None]:
        """What happens within leaves the witness undisturbed and no traceback, and at no moment takes more memory."""
        self.witness.go_on()
        before, logged = self.rss, len(self.broker.log)
        self.forget_peak()
        yield
        self.witness.go_on()
        grown = self.peak_rss - before
        assert grown < max_growth_bytes, f"the broker grew by {grown >> 20} MiB"
        log = self.broker.log[logged:]
        assert "Traceback" not in log, log
        assert " ERROR " not in log, log
        assert self._process.is_running()


@contextlib.contextmanager
def scene(options: Mapping[str, str] | None = None) -> Iterator[Scene]:
    with EmbeddedBroker(options={**UNHURRIED, **(options or {})}) as broker, Witness(broker) as witness:
        yield Scene(broker, witness)


def files_under(broker: EmbeddedBroker) -> set[str]:
    """The names in the data directory, and beside it."""
    return {*os.listdir(broker.data_dir), *os.listdir(broker.data_dir.parent)}
