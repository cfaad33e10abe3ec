"""A held partition in a process of its own, which kills itself at a step: ``python -m tests.crash.held_driver JSON``.

The topic is an ordinary compacted one here, so no worker of the broker has it. Without a step the process runs until it
is ended from outside.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from skep.worker.held.held_index import HeldIndex
from skep.worker.held.held_partition import HeldPartition, HeldSpec
from skep.worker.held.kafka_log import KafkaLog
from skep.worker.held.transition import Firing, Output
from skep.worker.job import Settings

STEPS = (
    "opened",
    "replace",
    "replaced",
    "compared",
    "sent",
    "commit",
    "committed",
    "removed",
    "applied",
)


def die_at(step: str, wanted: str | None) -> None:
    if step == wanted:
        os.kill(os.getpid(), signal.SIGKILL)


class DyingLog(KafkaLog):
    step: str | None = None

    def open(self) -> None:
        super().open()
        die_at("opened", self.step)

    def replace(self, firings: Sequence[Firing]) -> list[int]:
        die_at("replace", self.step)
        offsets = super().replace(firings)
        die_at("replaced", self.step)
        return offsets

    def overtaken(self, keys: Collection[bytes], start: int, own: Collection[int]) -> dict[bytes, int]:
        found = super().overtaken(keys, start, own)
        die_at("compared", self.step)
        return found

    def send(self, outputs: Iterable[Output]) -> None:
        super().send(outputs)
        die_at("sent", self.step)

    def commit(self) -> None:
        die_at("commit", self.step)
        super().commit()
        die_at("committed", self.step)


class DyingIndex(HeldIndex):
    step: str | None = None

    def remove(self, offsets: Iterable[int]) -> None:
        super().remove(offsets)
        die_at("removed", self.step)

    def apply(self, changes: Any, position: Any) -> None:
        super().apply(changes, position)
        if changes:
            die_at("applied", self.step)


def main(given: dict[str, Any]) -> None:
    DyingLog.step = DyingIndex.step = given["step"]
    settings = Settings(given["bootstrap"], given["directory"], 1)
    spec = HeldSpec(**given["spec"])
    partition = HeldPartition(
        spec,
        DyingIndex(os.path.join(given["directory"], "index"), "x"),
        lambda: DyingLog(settings, spec.topic, spec.id, spec.partition),
        lambda: time.time_ns() // 1_000_000,
        threading.Event(),
    )
    partition.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
