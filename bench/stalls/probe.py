"""The other client: asks for ApiVersions a few hundred times a second and remembers its worst round trip.

A process of its own, so that what the first client does to its own interpreter is not counted.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bench.raw_client import RawClient
from bench.stalls.stall import request
from skep.wire.apis import API_VERSIONS

PAUSE_S = 0.002
START_S = 120.0
PRIORITY = -10
"""So that the probe is not the one that waits for a processor; where that is not allowed, it is."""


class ProbeResult:
    """Filled in when the probing has ended."""

    worst_s = 0.0
    median_s = 0.0
    since = 0.0
    """When the first response came, in seconds since the epoch. This is known at once."""


@contextmanager
def probing(address: str, start: Callable[[], None] | None = None) -> Iterator[ProbeResult]:
    """Probes the broker at ``address`` while the block runs.

    ``start`` starts the broker if it does not run. The probe waits for it, so that it sees the first moments too.
    """
    result = ProbeResult()
    command = [sys.executable, "-m", "bench.stalls.probe", address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if start is not None:
            start()
        result.since = float(process.stdout.readline())
        try:
            yield result
        finally:
            printed, _ = process.communicate()
            median, worst = printed.split()
            result.median_s, result.worst_s = float(median), float(worst)


def _connected(address: str) -> RawClient:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return RawClient(address)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


def main(address: str) -> None:
    with suppress(OSError):
        os.nice(PRIORITY)
    os.set_blocking(sys.stdin.fileno(), False)
    took = []
    with _connected(address) as client:
        number = 0
        while True:
            frame = request(API_VERSIONS, 3, {"client_software_name": "probe", "client_software_version": "1"})
            started = time.perf_counter()
            client.ask(frame)
            took.append(time.perf_counter() - started)
            if number == 0:
                took.clear()
                print(time.time(), flush=True)
            number += 1
            with suppress(BlockingIOError):
                if os.read(sys.stdin.fileno(), 1) == b"":
                    break
            time.sleep(PAUSE_S)
    took.sort()
    print(took[len(took) // 2], took[-1])


if __name__ == "__main__":
    main(sys.argv[1])
