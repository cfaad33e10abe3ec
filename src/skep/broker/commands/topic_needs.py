"""The command ``topic_needs``: how far the groups that this broker coordinates are in topics. Between brokers.

Arguments
    ``topics``: pairs of a name and a topic id.

Result
    ``partitions``: which partitions of ``__consumer_offsets`` and ``__share_group_state`` the result speaks for: those
    that are led and loaded here.
    ``needs``: for each topic ``groups``, the number of groups with committed offsets or without any offset yet, and
    ``partitions``, each with its number, the lowest offset that a group needs, and how many of these groups have one.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from skep.broker.cluster.group_progress import topics_of
from skep.broker.commands.command import Argument, Command
from skep.broker.services import Services

MAX_TOPICS = 200


async def _topic_needs(services: Services, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return (await services.group_progress.here(topics_of(arguments["topics"]))).to_json()


def _is_topics(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= MAX_TOPICS and all(map(_is_topic, value))


def _is_topic(pair: Any) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
        return False
    try:
        UUID(pair[1])
    except ValueError:
        return False
    return True


COMMAND = Command(
    _topic_needs, {"topics": Argument(_is_topics, f"a list of 1 to {MAX_TOPICS} pairs [topic name, topic id]")}
)
