"""The broker on uvloop and on asyncio's own loop: ``python -m bench.experiments.loops``."""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import uvloop

from bench import frames
from bench.peers import Server, apart, cpu_seconds, create_topic
from bench.raw_client import RawClient
from bench.row import percentile, take_turns
from skep.app import serve

TOPIC = "loops"
PIPELINED = 50_000
ALONE = 5_000
_READY = b" ready on "


class Measured(NamedTuple):
    rate: float
    cpu_us: float
    p50_us: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f} requests/s, {self.cpu_us:.0f} us CPU each; one at a time p50 {self.p50_us:.0f} us"


@contextlib.contextmanager
def broker_on(loop: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as data_dir:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.experiments.loops", loop, data_dir],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield Server(line.split(_READY)[1].split(b",")[0].decode(), process.pid)
        finally:
            process.terminate()
            process.communicate(timeout=60)


def measure(loop: str) -> Measured:
    request = frames.produce(TOPIC, 0, frames.one_record_batch(100))
    with broker_on(loop) as broker, RawClient(broker.address) as client:
        create_topic(broker.address, TOPIC)
        answer_size = len(client.ask(request))
        with apart(broker.pid):
            client.pipelined([request], 2_000, answer_size)
            cpu = cpu_seconds(broker.pid)
            seconds = client.pipelined([request], PIPELINED, answer_size)
            cpu_us = (cpu_seconds(broker.pid) - cpu) / PIPELINED * 1e6
            took = client.one_at_a_time([request], ALONE, answer_size)
        return Measured(PIPELINED / seconds, cpu_us, percentile(took, 0.5))


def main() -> None:
    if len(sys.argv) == 3:
        run = uvloop.run if sys.argv[1] == "uvloop" else asyncio.run
        run(serve({"log.dirs": sys.argv[2], "listeners": "127.0.0.1:0"}, stop_at_eof=True))
        return
    results = take_turns({"uvloop": lambda: measure("uvloop"), "asyncio": lambda: measure("asyncio")}, str)
    for name, runs in results.items():
        best = (max(r.rate for r in runs), min(r.cpu_us for r in runs), min(r.p50_us for r in runs))
        print(f"{name:8} best of each: {Measured(*best)}")


if __name__ == "__main__":
    main()
