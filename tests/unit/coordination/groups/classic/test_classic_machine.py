"""Random lives of a classic group: members come, go, freeze and come back, time passes, the coordinator is lost.

The clients of the test behave like clients: one request at a time, and what they are told decides the next one. The
leader gives each of the partitions to one member.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination import background
from skep.coordination.groups.classic import static_member
from skep.coordination.groups.offsets.offset_operations import Committer
from tests.unit.coordination.driver import ShardDriver, Waiter
from tests.unit.coordination.groups.classic_groups import ClassicGroups, logged_state
from tests.unit.coordination.groups.classic_transitions import WatchedTransitions
from tests.unit.coordination.groups.offset_machine import CommitsOffsets

NAMES = "abcdef"
VERSIONS = st.sampled_from([0, 3, 5, 8, 9])
TURNS = st.text(NAMES + "." + NAMES, max_size=40)
PARTITIONS = range(6)
SESSION_MS, REBALANCE_MS = 6_000, 8_000
LONGEST_WAIT_MS = 300_000
"""In which whoever waits must be told something: that of new members is the longest."""
_START_OVER = {ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}


class Client:
    """What a consumer knows of itself. ``waiter`` is the request it waits for, if any."""

    def __init__(self, name: str, instance: str | None, version: int) -> None:
        self.name, self.instance, self.version = name, instance, version
        self.member_id = ""
        self.generation_id = -1
        self.waiter: Waiter | None = None
        self.kind = ""
        self.to_assign: list[str] = []
        self.must_join = True
        self.is_assigned = False
        self.owned: frozenset[int] = frozenset()
        self.metadata = b""

    def read_response(self) -> None:
        if self.waiter is None or not self.waiter.is_answered:
            return
        reply, self.waiter = self.waiter.reply, None
        code = reply.code if isinstance(reply, KafkaError) else reply.get("error_code", ErrorCode.none)
        if code is ErrorCode.none:
            (self._joined if self.kind == "join" else self._synced)(reply)
        elif code is ErrorCode.member_id_required:
            self.member_id = reply["member_id"]
        else:
            self.refused(code)

    def refused(self, code: ErrorCode) -> None:
        self.must_join, self.is_assigned, self.owned = True, False, frozenset()
        if code in _START_OVER:
            self.member_id = ""

    def _joined(self, reply: Any) -> None:
        self.must_join = False
        self.member_id, self.generation_id = reply["member_id"], reply["generation_id"]
        leads = reply["leader"] == self.member_id and not reply.get("skip_assignment")
        self.to_assign = [member["member_id"] for member in reply["members"]] if leads else []
        self.is_assigned, self.owned = False, frozenset()

    def _synced(self, reply: Any) -> None:
        self.is_assigned, self.owned = True, frozenset(reply["assignment"])


class ClassicGroupMachine(CommitsOffsets, RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.transitions = WatchedTransitions()
        self.groups = ClassicGroups({"group.initial.rebalance.delay.ms": "1000", "group.max.size": "8"})
        self.clients: dict[str, Client] = {}
        self.waiting: list[tuple[float, Waiter]] = []
        self.gone: list[Client] = []
        self.last_group: Any = None
        self.last_generation = 0

    @property
    def driver(self) -> ShardDriver:
        return self.groups.driver

    def committers(self) -> list[Committer]:
        clients = [*self.clients.values(), *self.gone]
        return [Committer(client.member_id, client.instance, client.generation_id) for client in clients]

    def is_member_of_now(self, group: Any, committer: Committer) -> bool:
        member = group.members[committer.member_id]
        return committer == (member.member_id, member.group_instance_id, group.generation_id)

    def _ask(self, client: Client, kind: str, waiter: Waiter) -> None:
        client.waiter, client.kind = waiter, kind
        self.waiting.append((self.groups.driver.clock.monotonic(), waiter))
        client.read_response()

    @initialize(kinds=st.lists(st.tuples(st.booleans(), VERSIONS), min_size=2, max_size=5), turns=TURNS)
    def begin(self, kinds: list[tuple[bool, int]], turns: str) -> None:
        for name, (is_static, version) in zip(NAMES, kinds, strict=False):
            self._start(name, is_static, version)
        self._go_on(turns)

    @rule(name=st.sampled_from(NAMES), is_static=st.booleans(), version=VERSIONS, turns=TURNS)
    def start(self, name: str, is_static: bool, version: int, turns: str) -> None:
        """A consumer starts; if one of that name was there it is dead, or frozen, without a word."""
        self._start(name, is_static, version)
        self._go_on(turns)

    def _start(self, name: str, is_static: bool, version: int) -> None:
        if (before := self.clients.pop(name, None)) is not None:
            self.gone.append(before)
        self.clients[name] = Client(name, name if is_static and version >= 5 else None, version)

    @rule(turns=TURNS)
    def go_on(self, turns: str) -> None:
        self._go_on(turns)

    def _go_on(self, turns: str) -> None:
        """Clients send what a client sends next, in this order; a dot is half a second."""
        for turn in turns:
            if turn == ".":
                self.groups.pass_ms(500)
            elif turn in self.clients:
                self._next_request(self.clients[turn])

    def _next_request(self, client: Client) -> None:
        client.read_response()
        if client.waiter is not None:
            return
        if client.must_join:
            self._join(client)
        elif client.is_assigned:
            self._heartbeat(client)
        else:
            self._sync(client)

    def _join(self, client: Client) -> None:
        waiter = self.groups.join(
            client.member_id,
            instance=client.instance,
            version=client.version,
            protocols=(("range", client.metadata),),
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            client_id=client.name,
        )
        self._ask(client, "join", waiter)

    def _sync(self, client: Client) -> None:
        assignments = {
            member_id: bytes(p for p in PARTITIONS if p % len(client.to_assign) == place)
            for place, member_id in enumerate(client.to_assign)
        }
        waiter = self.groups.sync(client.member_id, client.generation_id, assignments, instance=client.instance)
        self._ask(client, "sync", waiter)

    def _heartbeat(self, client: Client) -> None:
        code = self.groups.heartbeat(client.member_id, client.generation_id, client.instance)
        if code is not ErrorCode.none:
            client.refused(code)

    @rule(name=st.sampled_from(NAMES), metadata=st.sampled_from([b"", b"x"]), turns=TURNS)
    def join_again(self, name: str, metadata: bytes, turns: str) -> None:
        """A consumer has subscribed anew, or seen new partitions, and joins although nobody told it."""
        client = self.clients.get(name)
        if client is not None and client.waiter is None:
            client.must_join, client.metadata = True, metadata
        self._go_on(turns)

    @rule(name=st.sampled_from(NAMES), turns=TURNS)
    def leave(self, name: str, turns: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None and client.member_id:
            self.groups.leave((client.member_id, client.instance))
            self.gone.append(client)
        self._go_on(turns)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def wake_up(self, data: st.DataObject) -> None:
        """A frozen consumer goes on where it stopped, with what it believes."""
        client = data.draw(st.sampled_from(self.gone))
        client.read_response()
        if client.waiter is None and not client.must_join:
            self._heartbeat(client)

    @rule(milliseconds=st.sampled_from([0, 1, 500, 1_000, 3_000, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.groups.pass_ms(milliseconds)

    @rule(turns=TURNS)
    def coordinator_is_lost(self, turns: str) -> None:
        with self.transitions.unwatched():
            self.groups.driver.restart()
        # What was not in the log yet is forgotten, generations included.
        self.last_group, self.last_generation = self.groups.shard.groups.get("g"), 0
        self._go_on(turns)

    @rule(code=st.sampled_from([ErrorCode.coordinator_not_available, ErrorCode.record_list_too_large]))
    def an_append_fails(self, code: ErrorCode) -> None:
        """One request of each client, of which those that have something to write fail."""
        self.groups.driver.refuse_writes = KafkaError(code)
        for client in list(self.clients.values()):
            client.read_response()
            if client.waiter is None and not client.must_join:
                self._sync(client)
        self.groups.driver.refuse_writes = None

    @invariant()
    def sums_are_right(self) -> None:
        group = self.groups.shard.groups.get("g")
        if group is None:
            return
        members = group.members.values()
        assert group.waiting_to_join == sum(member.join_waiter is not None for member in members)
        assert group.static_ids == {m.group_instance_id: m.member_id for m in members if m.group_instance_id}
        assert group.is_empty == (not members)
        assert (group.leader_id in group.members) == bool(members)
        assert group.support == ({"range": len(members)} if members else {})
        assert group.metadata_bytes == sum(member.metadata_bytes for member in members)
        assert group.pending_sync <= group.members.keys()
        assert not group.pending & group.members.keys()
        assert not any(member.join_waiter is not None and member.sync_waiter is not None for member in members)

    @invariant()
    def a_group_that_is_in_the_log_is_not_forgotten(self) -> None:
        group = self.groups.shard.groups.get("g")
        if group is not self.last_group:
            assert self.last_group is None or not self.last_group.is_logged
            self.last_group, self.last_generation = group, 0

    @invariant()
    def the_generation_never_goes_back(self) -> None:
        if self.last_group is not None:
            assert self.last_group.generation_id >= self.last_generation
            self.last_generation = self.last_group.generation_id

    @invariant()
    def no_partition_is_owned_twice_in_a_generation(self) -> None:
        owners: dict[tuple[int, int], str] = {}
        for client in self.clients.values():
            client.read_response()
            for partition in client.owned:
                other = owners.setdefault((client.generation_id, partition), client.name)
                assert other == client.name, f"partition {partition} of {client.generation_id}: {other}, {client.name}"

    @invariant()
    def a_replay_gives_the_same(self) -> None:
        group = self.groups.shard.groups.get("g")
        with self.transitions.unwatched():
            replayed = self.groups.driver.replayed().groups.get("g")
        if group is not None and group.state_name == "Stable":
            assert logged_state(replayed) == logged_state(group)
        if replayed is not None and group is not None:
            assert replayed.generation_id <= group.generation_id

    @invariant()
    def nobody_is_forgotten(self) -> None:
        now = self.groups.driver.clock.monotonic()
        for _, waiter in self.waiting:
            assert len(waiter.replies) <= 1, f"{waiter} was answered twice"
        self.waiting = [(since, waiter) for since, waiter in self.waiting if not waiter.is_answered]
        parked = {id(waiter) for group in self.groups.shard.groups.values() for waiter in group.waiters()}
        assert {id(waiter) for _, waiter in self.waiting} == parked
        for since, waiter in self.waiting:
            assert now - since <= LONGEST_WAIT_MS / 1000, f"{waiter} still waits"

    def teardown(self) -> None:
        """Left alone, everybody is told, and the group is empty or gone."""
        try:
            self.groups.pass_ms(LONGEST_WAIT_MS + REBALANCE_MS + SESSION_MS)
            self.nobody_is_forgotten()
            assert not self.waiting
            assert all(group.is_empty for group in self.groups.shard.groups.values())
        finally:
            self.transitions.stop()
        super().teardown()


class LargeGroupMachine(ClassicGroupMachine):
    """Every group is a large one: static members wait for its record, which is made in steps."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(static_member, "SMALL_GROUP", 0)
        self._patch.setattr(background, "STEPS_AT_ONCE", 1)

    @rule(turns=TURNS)
    def the_coordinator_takes_a_step(self, turns: str) -> None:
        operation = next(self.groups.driver.timers.take_due(), None)
        if operation is not None:
            self.groups.driver.submit(operation)
        self._go_on(turns)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._patch.undo()


ClassicGroupMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
test_classic_groups_keep_their_promises = ClassicGroupMachine.TestCase
LargeGroupMachine.TestCase.settings = ClassicGroupMachine.TestCase.settings
test_large_classic_groups_keep_their_promises = LargeGroupMachine.TestCase
