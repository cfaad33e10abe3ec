"""The group coordinator in front of its shards: group ids, shards that load, and requests to a group of either kind."""

import asyncio
from typing import Any

import pytest

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.group_coordinator import GroupCoordinator
from skep.coordination.groups.offsets.offset_operations import Committer

TOO_LONG = "g" * 2_000


class LoadingRuntime:
    """A runtime whose shards are all being loaded."""

    is_loading = True

    def submit(self, key: str, operation: Any) -> Any:
        raise KafkaError(ErrorCode.coordinator_load_in_progress)

    shard_of = submit_and_wait = prepare = submit


@pytest.fixture
def groups() -> GroupCoordinator:
    return GroupCoordinator(LoadingRuntime(), CurrentConfig(read_broker_config({})))  # type: ignore[arg-type]


def code_of(call: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_a_heartbeat_has_no_error_while_the_coordinator_loads(groups):
    assert groups.heartbeat("g", "m", None, 1) == {}


def test_groups_are_not_listed_while_some_are_not_loaded(groups):
    assert code_of(lambda: asyncio.run(groups.list_groups(set(), set()))) is ErrorCode.coordinator_load_in_progress


@pytest.mark.parametrize(
    "call",
    [
        lambda groups: groups.heartbeat(TOO_LONG, "m", None, 1),
        lambda groups: groups.leave_group(TOO_LONG, []),
        lambda groups: groups.describe_group(TOO_LONG, 6),
        lambda groups: groups.describe_consumer_group(TOO_LONG),
        lambda groups: groups.delete_group(TOO_LONG),
        lambda groups: groups.commit_offsets(TOO_LONG, Committer("", None, -1), [], 8),
        lambda groups: groups.fetch_offsets(TOO_LONG, None, -1, None, require_stable=False),
        lambda groups: groups.delete_offsets(TOO_LONG, []),
        lambda groups: groups.check_coordinator(TOO_LONG),
    ],
)
def test_a_group_id_that_is_too_long_is_refused_before_the_coordinator_is_looked_up(groups, call):
    assert code_of(lambda: call(groups)) is ErrorCode.invalid_group_id


def test_only_offsets_may_have_an_empty_group_id(groups):
    assert code_of(lambda: groups.heartbeat("", "m", None, 1)) is ErrorCode.invalid_group_id
    assert code_of(lambda: groups.leave_group("", [])) is ErrorCode.invalid_group_id
    assert code_of(lambda: groups.delete_offsets("", [])) is ErrorCode.coordinator_load_in_progress
    assert code_of(lambda: groups.delete_group("")) is ErrorCode.coordinator_load_in_progress
