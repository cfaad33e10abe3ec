"""The other processes of a run: reference servers, topics on the broker, and what a process has used so far."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

MEGABYTE = 1_000_000


class Server(NamedTuple):
    address: str
    pid: int


@contextlib.contextmanager
def reference_server(module: str, *arguments: str) -> Iterator[Server]:
    """``python -m module``, which prints its port when it listens; gone at the end."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"{module} did not start")
        yield Server(f"127.0.0.1:{int(port)}", process.pid)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextlib.contextmanager
def apart(*pids: int) -> Iterator[None]:
    """This process on one processor and those on another, as long as it lasts.

    Left to itself the scheduler puts a client and its server now on one processor, now on two, and a request that
    waits for its answer takes 20 us or 120 us accordingly: more than any server makes of it.
    """
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        yield
        return
    first, second = sorted(before)[:2]
    try:
        os.sched_setaffinity(0, {first})
        for pid in pids:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {second})
        yield
    finally:
        os.sched_setaffinity(0, before)


def create_topic(bootstrap_servers: str, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 4})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(timeout=60)


def delete_topic(bootstrap_servers: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 4})
    for future in admin.delete_topics([name]).values():
        future.result(timeout=60)


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / MEGABYTE


def allow_descriptors(count: int) -> None:
    """Raises this process's own limit when it is lower; RuntimeError when the system forbids so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise RuntimeError(f"{count} descriptors are needed, ulimit -Hn is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
