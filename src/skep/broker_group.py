"""The parent process of ``skep serve --brokers N``: several brokers on one machine.

The parent serves no requests. It starts the brokers, merges their logs, restarts a broker that ends, and stops the
brokers one after the other, so that each can hand over its partitions to those still running.

Every broker runs in its own session: Ctrl-C goes to all processes in the foreground of a terminal, and if the brokers
were among them, all would stop at once with no broker left to take over. If the parent is killed, the brokers still
end, because the pipe that each has from it closes (``broker_process.py``).
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence

from skep.broker_process import command, first_line, how_it_ended, ready_address
from skep.replication.upkeep.kernel_compilation import compile_missing

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""The pause before a restart. It doubles each time, and starts over after a run of at least ``LONG_RUN_S``."""
LONG_RUN_S = 60.0
STOP_TIMEOUT_S = 120.0
_CHUNK = 1 << 16
_STARTUP_ERROR_PREFIX = b"skep: "


class Member:
    """One broker of the group. ``process`` is None while it waits for its restart."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.id = options["node.id"]
        self.options = dict(options)
        self.address = ""
        self.process: Process | None = None
        self.pause_s = FIRST_PAUSE_S
        self.is_ready = asyncio.Event()


class BrokerGroup:
    """The brokers. ``stopping`` is set to stop them one after the other, ``hurrying`` to stop the rest at once."""

    def __init__(self, brokers: Sequence[Mapping[str, str]], data_dir: str, next_steps: Callable[[str], str]) -> None:
        self.members = [Member(options) for options in brokers]
        self.data_dir = data_dir
        self.next_steps = next_steps
        self.stopping = asyncio.Event()
        self.hurrying = asyncio.Event()
        self._has_started = False
        self._failed = False

    async def run(self) -> int:
        """Runs until SIGTERM or SIGINT. Returns exit code 0, or 2 if a broker failed at the first start."""
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._stop_requested)
        members = [asyncio.create_task(self._keep_running(member)) for member in self.members]
        announcement = asyncio.create_task(self._announce_when_ready())
        await self.stopping.wait()
        announcement.cancel()
        await asyncio.gather(announcement, return_exceptions=True)
        await self._stop_in_turn()
        await asyncio.gather(*members)
        return 2 if self._failed else 0

    def _stop_requested(self) -> None:
        if self.stopping.is_set():
            self.hurrying.set()
        self.stopping.set()

    async def _announce_when_ready(self) -> None:
        for member in self.members:
            await member.is_ready.wait()
        self._has_started = True
        addresses = ",".join(member.address for member in self.members)
        brokers = "1 broker" if len(self.members) == 1 else f"{len(self.members)} brokers"
        _print(
            f"skep: cluster of {brokers} ready on {addresses}, data in {self.data_dir}, pid {os.getpid()}\n"
            f"{self.next_steps(addresses)}".rstrip("\n")
        )
        await compile_missing(self.data_dir)

    async def _keep_running(self, member: Member) -> None:
        """Runs the broker, and restarts it when it ends, until the group stops."""
        loop = asyncio.get_running_loop()
        while not self.stopping.is_set():
            started = loop.time()
            exit_code = await self._run_once(member)
            if self.stopping.is_set():
                return
            if not self._has_started and not member.is_ready.is_set():
                # A first start that fails needs the operator. The broker's error message has been printed.
                self._failed = True
                self.stopping.set()
                return
            if loop.time() - started > LONG_RUN_S:
                member.pause_s = FIRST_PAUSE_S
            _log(f"skep: broker {member.id} {how_it_ended(exit_code)}; restarting it in {member.pause_s:g} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(member.pause_s):
                    await self.stopping.wait()
            member.pause_s = min(LONGEST_PAUSE_S, member.pause_s * 2)

    async def _run_once(self, member: Member) -> int:
        process = await asyncio.create_subprocess_exec(
            *command(member.options), stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        member.process = process
        if self.stopping.is_set():
            # The stop was requested while this process was being created, so that _stop did not see it.
            process.send_signal(signal.SIGTERM)
        try:
            assert process.stdin is not None
            process.stdin.write(first_line(member.options))
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()
            await asyncio.gather(self._forward_stdout(member, process), self._forward_log(member, process))
            return await process.wait()
        finally:
            member.process = None

    async def _forward_stdout(self, member: Member, process: Process) -> None:
        """Prints the broker's output unchanged, and recognizes its ready line."""
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode(errors="replace"):
            if (address := ready_address(line)) is not None:
                member.address = "{}:{}".format(*address)
                member.is_ready.set()
            _print(line.rstrip("\n"))

    async def _forward_log(self, member: Member, process: Process) -> None:
        """Prints the broker's log with its id at the start of each line, except in JSON, where it is a field.

        Does not use ``readline``, which raises an error for a line longer than its buffer limit.
        """
        assert process.stderr is not None
        rest = b""
        while chunk := await process.stderr.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            _write_log([_marked(member.id, line) for line in lines])
        if rest:
            _write_log([_marked(member.id, rest)])

    async def _stop_in_turn(self) -> None:
        """Stops the last broker first, each after the one before it has ended; the rest at once when hurrying."""
        hurrying = asyncio.create_task(self.hurrying.wait())
        ends = []
        for member in reversed(self.members):
            end = asyncio.create_task(self._stop(member))
            ends.append(end)
            await asyncio.wait([end, hurrying], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*ends)
        hurrying.cancel()

    async def _stop(self, member: Member) -> None:
        process = member.process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # it may be paused
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            _log(f"skep: broker {member.id} did not stop within {STOP_TIMEOUT_S:.0f} s; killing it")
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def _marked(broker_id: str, line: bytes) -> bytes:
    if line.startswith(b"{"):
        return line + b"\n"
    if line.startswith(_STARTUP_ERROR_PREFIX):
        return b"skep: broker %s: %s\n" % (broker_id.encode(), line.removeprefix(_STARTUP_ERROR_PREFIX))
    return b"[broker %s] %s\n" % (broker_id.encode(), line)


def _print(line: str) -> None:
    # The brokers keep running if stdout is closed.
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _log(line: str) -> None:
    _write_log([line.encode() + b"\n"])


def _write_log(lines: Sequence[bytes]) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.buffer.write(b"".join(lines))
        sys.stderr.buffer.flush()


def run(
    brokers: Sequence[Mapping[str, str]], data_dir: str, next_steps: Callable[[str], str] = lambda bootstrap: ""
) -> int:
    """Runs the parent process until it is stopped; ``brokers`` holds the options of each broker.

    ``next_steps`` returns what is printed below the ready line, for the addresses that clients connect to.
    """
    return asyncio.run(_run(brokers, data_dir, next_steps))


async def _run(brokers: Sequence[Mapping[str, str]], data_dir: str, next_steps: Callable[[str], str]) -> int:
    return await BrokerGroup(brokers, data_dir, next_steps).run()
