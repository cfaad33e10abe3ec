"""What a large classic group can do: get its assignment, become a consumer group and a classic group again."""

import datetime
import time
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
RETURNING_MEMBERS = 10
PATIENCE_S = 60
OPTIONS = {"max.connections": "20000", "group.initial.rebalance.delay.ms": "1000"}


class LargeGroup:
    """A classic group of ``count`` members, each with a connection of its own, which what is measured closes."""

    def __init__(self, count: int, *, is_static: bool = False) -> None:
        self._count = count
        self._is_static = is_static
        self._stack = ExitStack()
        self._members: list[Member] = []

    def join(self, broker: EmbeddedBroker) -> None:
        """All have joined, and all but the leader have asked for their assignments."""
        with RawClient(broker.bootstrap_servers) as client:
            client.ask(request(apis.FIND_COORDINATOR, 3, {"key": GROUP, "key_type": 0}))
        connect = self._stack.enter_context
        self._members = [
            Member(connect(RawClient(broker.bootstrap_servers)), GROUP, f"i{number}" if self._is_static else None)
            for number in range(self._count)
        ]
        for expected in (ErrorCode.none,) if self._is_static else (ErrorCode.member_id_required, ErrorCode.none):
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
        with self._stack:
            self._upgrade(broker)

    def join_and_upgrade(self, broker: EmbeddedBroker) -> None:
        self.join_and_sync(broker)
        self._upgrade(broker)

    def _upgrade(self, broker: EmbeddedBroker) -> None:
        self._heartbeat_of_new(broker, 0)

    def downgrade(self, broker: EmbeddedBroker) -> None:
        """The member of the new protocol leaves; returns when the group is a classic group."""
        with self._stack, RawClient(broker.bootstrap_servers) as client:
            self._heartbeat_of_new(broker, -1)
            ask = request(apis.LIST_GROUPS, 5, {"states_filter": [], "types_filter": ["classic"]})
            until = time.monotonic() + PATIENCE_S
            while not frames.body(apis.LIST_GROUPS, 5, client.ask(ask)).groups:
                if time.monotonic() > until:
                    raise RuntimeError("the group is still a consumer group")
                time.sleep(0.05)
            time.sleep(1)

    def _heartbeat_of_new(self, broker: EmbeddedBroker, epoch: int) -> None:
        body = {
            "group_id": GROUP,
            "member_id": "new",
            "member_epoch": epoch,
            "rebalance_timeout": datetime.timedelta(minutes=1),
            "subscribed_topic_names": ["stalls"],
            "topic_partitions": [],
        }
        with RawClient(broker.bootstrap_servers) as client:
            response = client.ask(request(apis.CONSUMER_GROUP_HEARTBEAT, 1, body))
            code = frames.body(apis.CONSUMER_GROUP_HEARTBEAT, 1, response).error_code
            if code is not ErrorCode.none:
                raise RuntimeError(f"the member of the new protocol is refused: {code.name}")

    def come_back(self, broker: EmbeddedBroker) -> None:
        """Some static members are started anew, all at once."""
        with self._stack:
            returning = self._members[1 : 1 + RETURNING_MEMBERS]
            for member in returning:
                member.member_id = ""
                member.send_join()
            for member in returning:
                member.receive_join(ErrorCode.none)


_SYNCED = LargeGroup(SYNCED_MEMBERS)
_UPGRADED = LargeGroup(UPGRADED_MEMBERS)
_DOWNGRADED = LargeGroup(UPGRADED_MEMBERS)
_STATIC = LargeGroup(SYNCED_MEMBERS, is_static=True)

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
    Stall(
        "downgrade-group-large",
        f"a consumer group of {UPGRADED_MEMBERS:,} classic members becomes a classic group",
        _DOWNGRADED.downgrade,
        _DOWNGRADED.join_and_upgrade,
        OPTIONS,
    ),
    Stall(
        "static-members-return",
        f"{RETURNING_MEMBERS} static members come back to a classic group of {SYNCED_MEMBERS:,}",
        _STATIC.come_back,
        _STATIC.join_and_sync,
        OPTIONS,
    ),
)
