"""The job that runs held topics: one thread for each partition that this broker leads."""

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable

from skep.worker.held.held_index import SUFFIX, HeldIndex, remove_index
from skep.worker.held.held_partition import HeldPartition, HeldSpec
from skep.worker.held.kafka_log import KafkaLog
from skep.worker.job import Message, Settings

logger = logging.getLogger(__name__)

FORGOTTEN_S = 86_400.0
"""An index that was not used for this long would be made again anyway."""
STOP_S = 2.0
_PAUSE_S = 5.0


class HeldJob:
    """Owns the threads. Each partition has at most one that is not stopping."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running: dict[str, HeldThread] = {}
        self._held_topics: frozenset[str] = frozenset()

    def is_held(self, topic: str) -> bool:
        """Whether the cluster has a held topic of this name. Called by the threads."""
        return topic in self._held_topics

    def receive(self, message: Message, reply: Callable[[Message], None]) -> None:
        """``partitions`` are those to run from now on, as the fields of ``HeldSpec``; ``topics`` all held topics."""
        self._held_topics = frozenset(message.get("topics", ()))
        specs = {_name(spec): spec for spec in (HeldSpec(**fields) for fields in message.get("partitions", ()))}
        before = self._running
        self._running = {}
        for name, thread in before.items():
            if specs.get(name) != thread.spec:
                thread.stop()
        for name, spec in specs.items():
            earlier = before.get(name)
            if earlier is not None and earlier.spec == spec:
                self._running[name] = earlier
            else:
                self._running[name] = HeldThread(self._settings, spec, earlier, self.is_held)
                self._running[name].start()
        self._remove_forgotten({*before, *specs})

    def _remove_forgotten(self, used: set[str]) -> None:
        with contextlib.suppress(OSError), os.scandir(self._settings.directory) as found:
            for file in found:
                name = file.name.removesuffix(SUFFIX)
                is_index = file.name.endswith(SUFFIX) and name not in used
                if is_index and time.time() - file.stat().st_mtime > FORGOTTEN_S:
                    remove_index(file.path)

    def close(self) -> None:
        for thread in self._running.values():
            thread.stop()
        deadline = time.monotonic() + STOP_S
        for thread in self._running.values():
            thread.join(max(0.0, deadline - time.monotonic()))


def _name(spec: HeldSpec) -> str:
    return f"{spec.topic_id}-{spec.partition}"


class HeldThread(threading.Thread):
    """Runs one partition, after the thread that had it before has ended: both have the same file."""

    def __init__(
        self, settings: Settings, spec: HeldSpec, earlier: "HeldThread | None", is_held: Callable[[str], bool]
    ) -> None:
        super().__init__(name=f"held {spec}", daemon=True)
        self.spec = spec
        self._settings = settings
        self._earlier = earlier
        self._is_held = is_held
        self._stop_event = threading.Event()

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        if self._earlier is not None:
            self._earlier.join()
            self._earlier = None
        while not self._stop_event.is_set():
            try:
                self._run_once()
                return
            except (sqlite3.Error, OSError) as error:
                logger.error("held topic %s: its index cannot be used: %s; trying again", self.spec, error)
            except Exception:
                logger.exception("held topic %s failed; it is begun again", self.spec)
            self._stop_event.wait(_PAUSE_S)

    def _run_once(self) -> None:
        settings, spec = self._settings, self.spec
        index = HeldIndex(os.path.join(settings.directory, _name(spec) + SUFFIX), _name(spec))
        try:
            partition = HeldPartition(
                spec,
                index,
                lambda: KafkaLog(settings, spec.topic, spec.id, spec.partition),
                lambda: time.time_ns() // 1_000_000,
                self._stop_event,
                self._is_held,
            )
            partition.run()
        finally:
            index.close()
