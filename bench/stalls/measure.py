"""``python -m bench stalls``: what one client does to the others.

Each stall is something that one client does, or that happens to one partition, and that could hold the event loop for
seconds. Another client asks all the while, from a process of its own, and the row is its worst round trip. Each stall
has a broker of its own.
"""

from collections.abc import Iterable

from bench.row import Row, say
from bench.stalls import groups, requests
from bench.stalls.probe import probing
from bench.stalls.stall import Stall
from skep.testing import EmbeddedBroker

STALLS: tuple[Stall, ...] = (*requests.STALLS, *groups.STALLS)

NAMES = ("stalls", *(stall.name for stall in STALLS))
SELECTS = True
"""``measure`` is given the names that were asked for."""

BAR_S = 0.1
"""Below this the scheduler of a busy machine is all that is measured. What holds the loop is bounded to 20 ms."""


def measure(names: Iterable[str]) -> list[Row]:
    wanted = set(names)
    return [_row(stall) for stall in STALLS if "stalls" in wanted or stall.name in wanted]


def _row(stall: Stall) -> Row:
    with EmbeddedBroker(options=stall.options) as broker:
        say(f"{stall.name}: preparing")
        stall.prepare(broker)
        if stall.restarts:
            broker.restart()
        with probing(broker.bootstrap_servers) as probe:
            stall.act(broker)
    return Row(
        name=stall.name,
        what=f"worst round trip of another client: {stall.what}",
        bar=BAR_S,
        direction="at most",
        measured=probe.worst_s,
        ours=f"{probe.worst_s * 1000:.0f} ms",
        reference=f"median {probe.median_s * 1000:.1f} ms",
        unit="s",
    )
