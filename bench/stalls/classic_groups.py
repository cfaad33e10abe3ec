"""What a large classic group can do: get its assignment, or become a consumer group."""

import datetime
from contextlib import ExitStack

from bench import frames
from bench.groups import Member
from bench.raw_client import RawClient
from bench.stalls.stall import Stall, request
from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis

GROUP = "large"
SYNCED_MEMBERS = 5_000
UPGRADED_MEMBERS = 2_000
OPTIONS = {"max.connections": "20000", "group.initial.rebalance.delay.ms": "1000"}


class LargeGroup:
    """A classic group of ``count`` members, each with a connection of its own, which ``sync`` or ``upgrade`` closes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._stack = ExitStack()
        self._members: list[Member] = []

    def join(self, broker: EmbeddedBroker) -> None:
        """All have joined, and all but the leader have asked for their assignments."""
        with RawClient(broker.bootstrap_servers) as client:
            client.ask(request(apis.FIND_COORDINATOR, 3, {"key": GROUP, "key_type": 0}))
        connect = self._stack.enter_context
        self._members = [Member(connect(RawClient(broker.bootstrap_servers)), GROUP) for _ in range(self._count)]
        for expected in (ErrorCode.member_id_required, ErrorCode.none):
            for member in self._members:
                member.send_join()
            for member in self._members:
                member.receive_join(expected)
        for member in self._members:
            if not member.members:
                member.send_sync()

    def join_and_sync(self, broker: EmbeddedBroker) -> None:
        self.join(broker)
        self._sync()

    def sync(self, broker: EmbeddedBroker) -> None:
        """The leader brings the assignments."""
        with self._stack:
            self._sync()

    def _sync(self) -> None:
        for member in self._members:
            if member.members:
                member.send_sync()
        for member in self._members:
            member.receive_sync()

    def upgrade(self, broker: EmbeddedBroker) -> None:
        """A member of the new protocol joins."""
        body = {
            "group_id": GROUP,
            "member_id": "new",
            "member_epoch": 0,
            "rebalance_timeout": datetime.timedelta(minutes=1),
            "subscribed_topic_names": ["stalls"],
            "topic_partitions": [],
        }
        with self._stack, RawClient(broker.bootstrap_servers) as client:
            response = client.ask(request(apis.CONSUMER_GROUP_HEARTBEAT, 1, body))
            code = frames.body(apis.CONSUMER_GROUP_HEARTBEAT, 1, response).error_code
            if code is not ErrorCode.none:
                raise RuntimeError(f"the group is not upgraded: {code.name}")


_SYNCED = LargeGroup(SYNCED_MEMBERS)
_UPGRADED = LargeGroup(UPGRADED_MEMBERS)

STALLS = (
    Stall(
        "sync-group-large",
        f"a classic group of {SYNCED_MEMBERS:,} members gets its assignment",
        _SYNCED.sync,
        _SYNCED.join,
        OPTIONS,
    ),
    Stall(
        "upgrade-group-large",
        f"a classic group of {UPGRADED_MEMBERS:,} members becomes a consumer group",
        _UPGRADED.upgrade,
        _UPGRADED.join_and_sync,
        OPTIONS,
    ),
)
