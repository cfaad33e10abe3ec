"""Replays the records of consumer and share groups into the table of groups."""

from collections.abc import Callable
from typing import Any

from skep.coordination.groups.consumer.modern_group import ModernGroup
from skep.coordination.groups.group_table import GroupTable


def replays_of(kind: type[ModernGroup[Any]]) -> dict[Any, Callable[[GroupTable, Any, Any], None]]:
    """Returns the replay of every record that a group of this kind writes, by the class of the key."""

    def replay(table: GroupTable, key: Any, value: Any) -> None:
        group: Any = table.groups.get(key.group_id)
        if not isinstance(group, kind):
            # A tombstone of a group that is already deleted, or else the first record of a group that may follow one of
            # another kind with the same id.
            if value is None:
                return
            group = kind(key.group_id)
            table.groups[key.group_id] = group
        if value is None and type(key) is kind.layouts.group_key:
            del table.groups[key.group_id]
        else:
            group.replay(key, value)

    return dict.fromkeys(kind.replays, replay)
