"""``python -m bench stalls``: what one client does to the others.

Each stall is something that one client does, or that happens to one partition, and that could hold the event loop for
seconds. Another client asks all the while, from a process of its own, and the row is its worst round trip. Beside it
stands the longest callback of the event loop in CPU time: the budget is 20 ms (decision 0013). Each stall has a broker
of its own.
"""

from collections.abc import Callable, Iterable

from bench.row import Row, say
from bench.stalls import classic_groups, groups, handlers, logs, requests
from bench.stalls.callbacks import Callbacks, noting
from bench.stalls.probe import probing
from bench.stalls.stall import Stall
from skep.testing import EmbeddedBroker, EmbeddedCluster

STALLS: tuple[Stall, ...] = (*requests.STALLS, *handlers.STALLS, *logs.STALLS, *groups.STALLS, *classic_groups.STALLS)

NAMES = ("stalls", *(stall.name for stall in STALLS))
SELECTS = True
"""``measure`` is given the names that were asked for."""

BAR_S = 0.1
"""Below this the scheduler of a busy machine is all that is measured. What holds the loop is bounded to 20 ms."""


def measure(names: Iterable[str]) -> list[Row]:
    wanted = set(names)
    return [_row(stall) for stall in STALLS if "stalls" in wanted or stall.name in wanted]


def _row(stall: Stall) -> Row:
    say(f"{stall.name}: preparing")
    with noting() as callbacks:
        if stall.brokers == 0:
            worst_s, median = stall.act(None) or 0.0, ""
        elif stall.brokers == 1:
            with EmbeddedBroker(options=stall.options) as broker:
                worst_s, median = _probed(stall, broker, broker.bootstrap_servers, callbacks)
        else:
            with EmbeddedCluster(stall.brokers, config=stall.options) as cluster:
                worst_s, median = _probed(stall, cluster, cluster.brokers[1], callbacks)
        held_s, holder = callbacks.longest()
    return Row(
        name=stall.name,
        what=f"worst round trip of another client: {stall.what}",
        bar=BAR_S,
        direction="at most",
        measured=worst_s,
        ours=f"{worst_s * 1000:.0f} ms; loop held for {held_s * 1000:.0f} ms" if held_s else f"{worst_s * 1000:.0f} ms",
        reference=median,
        unit="s",
        details={"held_s": held_s, "holder": holder},
    )


def _probed(
    stall: Stall, subject: EmbeddedBroker | EmbeddedCluster, address: str, callbacks: Callbacks
) -> tuple[float, str]:
    stall.prepare(subject)
    start: Callable[[], None] | None = None
    if stall.restarts:
        assert isinstance(subject, EmbeddedBroker)
        subject.shut_down()
        start = subject.restart
    with probing(address, start) as probe, callbacks.watched(probe.since):
        measured_s = stall.act(subject)
    worst_s = probe.worst_s if measured_s is None else measured_s
    return worst_s, f"median {probe.median_s * 1000:.1f} ms"
