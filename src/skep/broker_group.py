"""Several brokers on one machine as one: the parent of ``skep serve --brokers N``.

It serves nothing itself. It starts the brokers, puts their logs together into one, starts a broker again that has
ended, and stops them one after the other, so that each can hand what it leads to those that are still there.

Every broker is a session of its own: Ctrl-C in a terminal goes to whoever is in the foreground, and were the brokers
among them, all would stop at the same moment with nobody left to hand over to. A parent that is killed takes them with
it all the same, by the pipe that each has from it (``broker_process.py``).
"""

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence

from skep.broker_process import command, first_line, how_it_ended, ready_address

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Before a broker that ended is started again; doubled each time, from the first again after ``LONG_RUN_S``."""
LONG_RUN_S = 60.0
STOP_TIMEOUT_S = 120.0
_CHUNK = 1 << 16
_OWN_WORDS = b"skep: "


class Member:
    """One broker of the group. ``process`` is None while it waits to be started again."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.id = options["node.id"]
        self.options = dict(options)
        self.address = ""
        self.process: Process | None = None
        self.pause_s = FIRST_PAUSE_S
        self.is_ready = asyncio.Event()


class BrokerGroup:
    """The brokers and what is asked of them: ``stopping`` to stop in turn, ``hurrying`` to stop all at once."""

    def __init__(self, brokers: Sequence[Mapping[str, str]], data_dir: str) -> None:
        self.members = [Member(options) for options in brokers]
        self.data_dir = data_dir
        self.stopping = asyncio.Event()
        self.hurrying = asyncio.Event()
        self._has_begun = False
        self._failed = False

    async def run(self) -> int:
        """Until it is to stop: exit code 0, or 2 when a broker did not start in the first place."""
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._asked_to_stop)
        keeping = [asyncio.create_task(self._keep(member)) for member in self.members]
        saying = asyncio.create_task(self._say_when_ready())
        await self.stopping.wait()
        saying.cancel()
        await self._stop_in_turn()
        await asyncio.gather(*keeping)
        return 2 if self._failed else 0

    def _asked_to_stop(self) -> None:
        if self.stopping.is_set():
            self.hurrying.set()
        self.stopping.set()

    async def _say_when_ready(self) -> None:
        for member in self.members:
            await member.is_ready.wait()
        self._has_begun = True
        addresses = ",".join(member.address for member in self.members)
        brokers = "1 broker" if len(self.members) == 1 else f"{len(self.members)} brokers"
        _print(f"skep: cluster of {brokers} ready on {addresses}, data in {self.data_dir}")

    # One broker.

    async def _keep(self, member: Member) -> None:
        """Runs the broker, again and again, until all are to stop."""
        loop = asyncio.get_running_loop()
        while not self.stopping.is_set():
            began = loop.time()
            exit_code = await self._run_once(member)
            if self.stopping.is_set():
                return
            if not self._has_begun and not member.is_ready.is_set():
                # Its own words about it have been passed on. It is the operator's turn.
                self._failed = True
                self.stopping.set()
                return
            if loop.time() - began > LONG_RUN_S:
                member.pause_s = FIRST_PAUSE_S
            _log(f"skep: broker {member.id} {how_it_ended(exit_code)}; it is started again in {member.pause_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), member.pause_s)
            member.pause_s = min(LONGEST_PAUSE_S, member.pause_s * 2)

    async def _run_once(self, member: Member) -> int:
        process = await asyncio.create_subprocess_exec(
            *command(member.options), stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        member.process = process
        if self.stopping.is_set():
            # It was asked for while this process was being made, and who stops did not know of it yet.
            process.send_signal(signal.SIGTERM)
        try:
            assert process.stdin is not None
            process.stdin.write(first_line(member.options))
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()
            await asyncio.gather(self._listen(member, process), self._pass_on_log(member, process))
            return await process.wait()
        finally:
            member.process = None

    async def _listen(self, member: Member, process: Process) -> None:
        """Waits for the ready line, which is passed on as it is."""
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode(errors="replace"):
            if (address := ready_address(line)) is not None:
                member.address = "{}:{}".format(*address)
                member.is_ready.set()
            _print(line.rstrip("\n"))

    async def _pass_on_log(self, member: Member, process: Process) -> None:
        """Line by line, each with the broker's id in front. Not by ``readline``: it refuses a line of a megabyte."""
        assert process.stderr is not None
        rest = b""
        while chunk := await process.stderr.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            _write_log([_marked(member.id, line) for line in lines])
        if rest:
            _write_log([_marked(member.id, rest)])

    # The end.

    async def _stop_in_turn(self) -> None:
        """The last first, each when the one before it is gone; at once when somebody hurries."""
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
            process.send_signal(signal.SIGCONT)  # it may be frozen
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            _log(f"skep: broker {member.id} did not stop within {STOP_TIMEOUT_S:.0f} s and is killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def _marked(broker_id: str, line: bytes) -> bytes:
    if line.startswith(_OWN_WORDS):
        # The one line of a broker that cannot start is one line here too.
        return b"skep: broker %s: %s\n" % (broker_id.encode(), line.removeprefix(_OWN_WORDS))
    return b"[broker %s] %s\n" % (broker_id.encode(), line)


def _print(line: str) -> None:
    # Nobody has to be there to read it: the brokers go on.
    with contextlib.suppress(OSError):
        print(line, flush=True)


def _log(line: str) -> None:
    _write_log([line.encode() + b"\n"])


def _write_log(lines: Sequence[bytes]) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.buffer.write(b"".join(lines))
        sys.stderr.buffer.flush()


def run(brokers: Sequence[Mapping[str, str]], data_dir: str) -> int:
    """The whole life of the parent process; what is in ``brokers`` are the options of each."""
    return asyncio.run(_run(brokers, data_dir))


async def _run(brokers: Sequence[Mapping[str, str]], data_dir: str) -> int:
    return await BrokerGroup(brokers, data_dir).run()
