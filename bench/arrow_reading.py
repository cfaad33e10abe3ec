"""Row read-arrow: ``skep.read_arrow`` against confluent-kafka's ``consume``, each on one processor.

The client, with all its threads, has one processor and the broker the other. ``consume`` gives Message objects and is
done when the last one is there; no field of them is looked at, so the work of making columns of them is not in it. How
the consumer is configured is in ``confluent_reading``. CRCs are checked by ``read_arrow``, and by default not by
librdkafka.
"""

import statistics
import time
from collections.abc import Iterator

import skep
from bench.confluent_reading import AT_ONCE, consumed
from bench.peers import apart
from bench.ready_rows import RECORDS_AT_ONCE, fill
from bench.row import Row, spread, take_turns
from skep.testing import EmbeddedBroker

NAMES = ("read-arrow",)
SCALABLE = True

RECORDS = 4_000_000
ROUNDS = 5

OURS, CONSUME = "read_arrow", "consume"


def measure(scale: float = 1.0) -> Iterator[Row]:
    records = max(int(RECORDS * scale) // RECORDS_AT_ONCE, 1) * RECORDS_AT_ONCE
    with EmbeddedBroker() as broker, apart(broker.pid):
        servers = broker.bootstrap_servers
        fill(servers, "bench", 1, records)

        def ours() -> float:
            begun = time.perf_counter()
            table = skep.read_arrow(servers, "bench")
            seconds = time.perf_counter() - begun
            if table.num_rows != records:
                raise RuntimeError(f"{table.num_rows} of {records} records were read")
            return seconds

        def theirs() -> float:
            begun = time.perf_counter()
            for _ in consumed(servers, "bench", 0, records):
                pass
            return time.perf_counter() - begun

        turns = {OURS: ours, CONSUME: theirs}
        for run in turns.values():
            run()
        seconds = take_turns(turns, lambda one: f"{records / one / 1e6:.2f} M records/s", ROUNDS)
    rates = {name: [records / one for one in runs] for name, runs in seconds.items()}
    middle = {name: statistics.median(runs) for name, runs in rates.items()}
    yield Row(
        "read-arrow",
        f"{records:,} records of 100 B on one core, to confluent-kafka's consume({AT_ONCE}); medians",
        5.0,
        "at least",
        middle[OURS] / middle[CONSUME],
        f"{middle[OURS]:,.0f} records/s",
        f"{middle[CONSUME]:,.0f} records/s",
        details={name: spread(runs) for name, runs in rates.items()},
    )
