"""A shard with classic groups, and clients that say what JoinGroup, SyncGroup, Heartbeat and LeaveGroup say."""

from collections.abc import Mapping, Sequence
from typing import Any

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups.classic import classic_join, classic_leave, classic_sync
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_leave import Leaving
from skep.coordination.groups.classic.classic_sync import SyncRequest
from skep.coordination.groups.classic.join_request import JoinRequest
from skep.coordination.groups.group_shard import GroupShard
from skep.metadata.cluster_image import ClusterImage
from tests.unit.coordination.driver import ShardDriver, Waiter

RANGE = (("range", b"r"),)
SESSION_MS = 10_000
REBALANCE_MS = 60_000


class ClassicGroups:
    """The group ``g`` unless another one is named. Options are given as texts, under their names."""

    def __init__(self, options: dict[str, str] | None = None) -> None:
        self.config = CurrentConfig(read_broker_config(options or {}))
        self.driver = ShardDriver(
            lambda context: GroupShard(context, self.config, lambda: ClusterImage.of("test")),
            decode_group_record,
        )

    @property
    def shard(self) -> GroupShard:
        return self.driver.shard

    @property
    def group(self) -> ClassicGroup:
        group = self.shard.groups["g"]
        assert isinstance(group, ClassicGroup)
        return group

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = "g",
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
        client_id: str = "app",
    ) -> Waiter:
        request = JoinRequest(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=instance,
            client_id=client_id,
            client_host="/127.0.0.1",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=protocols,
            reason=None,
            version=version,
        )
        return self.driver.submit_and_wait(
            lambda shard, waiter: classic_join.join(shard, request, waiter), f"join {member_id or instance}"
        )

    def new_id(self, **request: Any) -> str:
        """The id that a dynamic member gets when it comes for the first time."""
        reply = self.join(**request).reply
        assert reply["error_code"] is ErrorCode.member_id_required
        return str(reply["member_id"])

    def join_as_new(self, **request: Any) -> tuple[str, Waiter]:
        member_id = self.new_id(**request)
        return member_id, self.join(member_id, **request)

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group_id: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Waiter:
        request = SyncRequest(
            group_id, generation_id, member_id, instance, protocol_type, protocol_name, assignments or {}
        )
        return self.driver.submit_and_wait(
            lambda shard, waiter: classic_sync.sync(shard, request, waiter), f"sync {member_id}"
        )

    def heartbeat(self, member_id: str, generation_id: int, instance: str | None = None, group_id: str = "g") -> Any:
        return code_of(
            self.driver.submit_and_wait(
                lambda shard, _: classic_leave.heartbeat(shard, group_id, member_id, instance, generation_id)
            )
        )

    def leave(self, *entries: tuple[str, str | None] | str, group_id: str = "g") -> Sequence[ErrorCode]:
        leaving = [Leaving(entry, None, None) if isinstance(entry, str) else Leaving(*entry, None) for entry in entries]
        responses = self.driver.submit(lambda shard: classic_leave.leave(shard, group_id, leaving))
        return [response["error_code"] for response in responses]

    def pass_ms(self, milliseconds: int) -> None:
        self.driver.pass_ms(milliseconds)

    def stable(self, count: int, **request: Any) -> list[str]:
        """``count`` dynamic members in a stable group, the leader first, each with its number as its assignment."""
        joins = [self.join_as_new(**request) for _ in range(count)]
        # Twice: those who came during the delay made it begin anew.
        self.pass_ms(2 * self.config.value.coordinator.group_initial_rebalance_delay_ms)
        members = [member_id for member_id, _ in joins]
        generation_id = joins[0][1].reply["generation_id"]
        assignments = {member_id: b"%d" % number for number, member_id in enumerate(members)}
        for member_id in reversed(members):
            self.sync(member_id, generation_id, assignments if member_id == members[0] else None)
        assert self.group.state_name == "Stable"
        return members


def code_of(waiter: Waiter) -> ErrorCode:
    reply = waiter.reply
    if isinstance(reply, KafkaError):
        return reply.code
    code = reply.get("error_code", ErrorCode.none)
    assert isinstance(code, ErrorCode)
    return code


def logged_state(group: ClassicGroup) -> Any:
    """What a replay must give back."""
    return (
        group.state,
        group.state_timestamp,
        group.generation_id,
        group.protocol_type,
        group.protocol_name,
        group.leader_id,
        [
            (
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.metadata(group.protocol_name),
                member.assignment,
            )
            for member in group.members.values()
        ],
    )
