"""Row group-join: the broker's CPU for one member of a group of 500 that joins and is stable, to one of a group of 50.

Members are bare sockets: join, be told a member id, join with it, sync, send a heartbeat. What grows with the square of
the members, a scan of all of them for each that joins, say, would show as a ratio of up to 10.
"""

import contextlib
import datetime
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench import frames
from bench.peers import cpu_seconds
from bench.raw_client import RawClient
from bench.row import Row, spread, take_turns
from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis

NAMES = ("group-join",)

FEW, MANY = 50, 500
DELAY_MS = 1_000
"""Long enough for all to have joined; the group waits for it, and that costs no CPU."""
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, COORDINATOR_VERSION = 7, 5, 4, 3
SUBSCRIPTION = bytes(100)
ASSIGNMENT = bytes(100)


class Cost(NamedTuple):
    cpu_us: float
    members: int

    def __str__(self) -> str:
        return f"{self.cpu_us:.0f} us CPU for each of {self.members} members"


class Member:
    def __init__(self, client: RawClient, group: str, instance_id: str | None = None) -> None:
        self.client = client
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.members: list[str] = []

    def send_join(self) -> None:
        second = datetime.timedelta(seconds=1)
        body = {
            "group_id": self.group,
            "session_timeout": 30 * second,
            "rebalance_timeout": 60 * second,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        }
        self.client.send(frames.request(apis.JOIN_GROUP, JOIN_VERSION, body))

    def receive_join(self, expected: ErrorCode) -> None:
        answer = self._receive(apis.JOIN_GROUP, JOIN_VERSION, expected)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        self.members = [member.member_id for member in answer.members]

    def send_sync(self) -> None:
        body = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member, "assignment": ASSIGNMENT} for member in self.members],
        }
        self.client.send(frames.request(apis.SYNC_GROUP, SYNC_VERSION, body))

    def receive_sync(self) -> None:
        if self._receive(apis.SYNC_GROUP, SYNC_VERSION, ErrorCode.none).assignment != ASSIGNMENT:
            raise RuntimeError("a member has another assignment than the leader gave it")

    def heartbeat(self) -> None:
        body = {"group_id": self.group, "generation_id": self.generation, "member_id": self.member_id}
        self.client.send(frames.request(apis.HEARTBEAT, HEARTBEAT_VERSION, body))
        self._receive(apis.HEARTBEAT, HEARTBEAT_VERSION, ErrorCode.none)

    def _receive(self, api: apis.Api, version: int, expected: ErrorCode) -> Any:
        answer = frames.body(api, version, self.client.receive())
        if answer.error_code is not expected:
            raise RuntimeError(f"{api.name}: {answer.error_code.name} instead of {expected.name}")
        return answer


def measure() -> Iterator[Row]:
    options = {"group.initial.rebalance.delay.ms": str(DELAY_MS), "max.connections": "20000"}
    with EmbeddedBroker(options=options) as broker:
        numbers = iter(range(1000))
        _join(broker, f"warm-up-{next(numbers)}", FEW)

        def cost(members: int) -> Cost:
            # As many members in all, one group after the other: the kernel counts CPU in steps of 10 ms.
            cpu = cpu_seconds(broker.pid)
            for _ in range(MANY // members):
                _join(broker, f"group-{next(numbers)}", members)
            return Cost((cpu_seconds(broker.pid) - cpu) / MANY * 1e6, members)

        results = take_turns({"few": lambda: cost(FEW), "many": lambda: cost(MANY)}, str)
    few, many = min(results["few"]), min(results["many"])
    yield Row(
        "group-join",
        f"broker's CPU for a member of a group that joins and is stable: one of {MANY} to one of {FEW}",
        2.0,
        "at most",
        many.cpu_us / few.cpu_us,
        str(many),
        str(few),
        details={name: {"cpu_us": spread([r.cpu_us for r in runs])} for name, runs in results.items()},
    )


def _join(broker: EmbeddedBroker, group: str, count: int) -> None:
    with contextlib.ExitStack() as stack:
        members = [Member(stack.enter_context(RawClient(broker.bootstrap_servers)), group) for _ in range(count)]
        members[0].client.ask(frames.request(apis.FIND_COORDINATOR, COORDINATOR_VERSION, {"key": group}))
        for expected in (ErrorCode.member_id_required, ErrorCode.none):
            for member in members:
                member.send_join()
            for member in members:
                member.receive_join(expected)
        leaders = [member for member in members if member.members]
        if len(leaders) != 1 or len(leaders[0].members) != count:
            raise RuntimeError(f"{len(leaders)} leaders; the group should be one of {count} members")
        for member in members:
            member.send_sync()
        for member in members:
            member.receive_sync()
        for member in members:
            member.heartbeat()
