"""One fuzz run: hostile connections and a witness against one broker; what was done, and what went wrong.

A run has a mode, which says at which door the hostile connections come in:

    requests   a listener without authentication
    strangers  listeners with SASL, with and without TLS, before a login
    users      a listener with SASL, after a login: as a user without any rights, and as one with all of them
    tls        a listener with TLS: what comes is none, or damaged
"""

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

from skep.testing import EmbeddedBroker
from tests.fuzz.doors import PASSWORD, AfterAuthentication, BeforeAuthentication, Door, InsideTls, TlsGarbage
from tests.fuzz.hostility import Hostility
from tests.fuzz.messages import Messages
from tests.fuzz.secured import SecuredBroker, secured_broker
from tests.fuzz.witness import Witness

REQUESTS, STRANGERS, USERS, TLS = MODES = ("requests", "strangers", "users", "tls")
MAX_GROWTH_BYTES = 150 << 20
LOOK_EVERY = 200
"""Steps between two looks at the broker."""
# Deletions are left to the requests themselves; what they leave must not fill the disk of a long run.
OPTIONS = {"log.segment.delete.delay.ms": "0"}


@dataclass
class Report:
    seed: int
    mode: str = REQUESTS
    done: dict[str, int] = field(default_factory=dict)
    frames: int = 0
    rounds: int = 0
    slowest_round_s: float = 0.0
    slowest_round_cpu_s: float = 0.0
    """The most that the broker computed in a round. It does not depend on what else the machine does."""
    rss_bytes: int = 0
    """Of the broker, before the first hostile byte."""
    grown_bytes: int = 0
    grown_late_bytes: int = 0
    """In the second half: what the first requests of each kind load is there by then."""
    failures: list[str] = field(default_factory=list)


def run(seconds: float, seed: int, mode: str = REQUESTS) -> Report:
    """Stops at the first failure."""
    report = Report(seed, mode)
    source = random.Random(seed)
    messages = Messages(source, PASSWORD)
    with _broker(mode, source) as (broker, doors):
        process = psutil.Process(broker.pid)
        hostility = Hostility(doors, messages, source)
        try:
            with Witness(broker) as witness:
                witness.go_on()
                report.rss_bytes, started = process.memory_info().rss, time.monotonic()
                for part in (1, 2):
                    before = process.memory_info().rss
                    _attack(hostility, witness, broker, process, started + seconds * part / 2)
                    report.grown_late_bytes = process.memory_info().rss - before
                report.grown_bytes = process.memory_info().rss - report.rss_bytes
                witness.go_on()
        except (AssertionError, OSError, psutil.Error) as error:
            report.failures.append(f"{type(error).__name__}: {error}")
        hostility.close()
        report.done, report.frames = dict(hostility.done), hostility.frames
        report.rounds, report.slowest_round_s = witness.rounds, witness.slowest_s
        report.slowest_round_cpu_s = witness.slowest_cpu_s
        if report.grown_bytes > MAX_GROWTH_BYTES:
            report.failures.append(f"the broker grew by {report.grown_bytes >> 20} MiB")
        if trouble := _trouble_in(broker.log):
            report.failures.append(f"the broker logged:\n{trouble}")
    return report


@contextlib.contextmanager
def _broker(mode: str, source: random.Random) -> Iterator[tuple[EmbeddedBroker, list[Door]]]:
    if mode == REQUESTS:
        with EmbeddedBroker(options=OPTIONS) as broker:
            host, _, port = broker.bootstrap_servers.rpartition(":")
            yield broker, [Door((host, int(port)), source)]
        return
    # Less than the tenth of a second that leaves hostile connections with nothing to do.
    with secured_broker({**OPTIONS, "connection.failed.authentication.delay.ms": "10"}) as secured:
        yield secured.broker, _doors(mode, secured, source)


def _doors(mode: str, secured: SecuredBroker, source: random.Random) -> list[Door]:
    if mode == TLS:
        return [TlsGarbage(secured.sasl_ssl, source)]
    if mode == USERS:
        return [AfterAuthentication(secured.sasl_plaintext, source, user) for user in secured.users]
    before = BeforeAuthentication(secured.sasl_plaintext, source)
    # A handshake of TLS takes longer than all that follows it.
    return [before, before, before, InsideTls(secured.sasl_ssl, source, str(secured.authority))]


def _attack(
    hostility: Hostility, witness: Witness, broker: EmbeddedBroker, process: psutil.Process, deadline: float
) -> None:
    steps = 0
    while time.monotonic() < deadline:
        hostility.step()
        steps += 1
        if steps % LOOK_EVERY == 0:
            witness.check()
            assert process.status() != psutil.STATUS_ZOMBIE, "the broker is dead"
            assert not _trouble_in(broker.log), "the broker logged an error"


def _trouble_in(log: str) -> str:
    """From the first error on, or nothing."""
    for mark in ("Traceback (most recent call last)", " ERROR ", "stack backtrace"):
        if mark in log:
            place = log.index(mark)
            return log[log.rfind("\n", 0, place) + 1 :][:4000]
    return ""
