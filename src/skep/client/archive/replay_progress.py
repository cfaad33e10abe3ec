"""The progress of a replay: offsets of a group, committed in the transactions that have the records.

They are offsets of the archived topic and mean nothing in the target's log. The archived topic may not exist here, so
they are committed for the target's partitions, in the metadata text: ``1f0c... 3:456`` means that archived partition 3
is replayed up to offset 456, by the replay whose archive, target and selection have this hash. A broker takes some
4,000 characters there, so every hundred archived partitions have a group of their own.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence

from skep.client.archive.archive_folder import ArchiveError
from skep.client.cluster_client import ClusterClient
from skep.client.produce.transaction_offsets import Position, commit_in_transaction, committed_positions
from skep.client.produce.transactions import end_transaction
from skep.records.producer_identity import ProducerIdentity

PARTITIONS_PER_GROUP = 100
"""The same for all targets, so that a target with more partitions than before still finds them."""


class ReplayProgress:
    """The progress of one replay, in the group of its name."""

    def __init__(self, cluster: ClusterClient, name: str, target: str, count: int, identity: Sequence[object]) -> None:
        """``identity`` is everything that decides which records are written to which partitions."""
        self._cluster, self._name = cluster, name
        self.target, self._count = target, count
        self._marker = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]

    def read(self, partitions: Collection[int]) -> dict[int, int]:
        """Returns the offsets reached, by archived partition.

        Raises ArchiveError when the name is in use for something else: that would be taken for progress of this one.
        """
        found: dict[int, int] = {}
        for group in sorted({self._group(one) for one in [0, *partitions]}):
            for position in committed_positions(self._cluster, group, self.target, self._count).values():
                marker, *texts = position.metadata.split() or [""]
                if marker != self._marker:
                    raise ArchiveError(
                        f"group '{group}' has offsets of topic '{self.target}' that are not of this replay: "
                        "a reader's, or of a replay with another archive, target or selection. Give this one another "
                        "--name"
                    )
                for text in texts:
                    partition, _, offset = text.partition(":")
                    # An older one may be left in another partition, from when the target had fewer.
                    found[int(partition)] = max(int(offset), found.get(int(partition), 0))
        return found

    def commit(self, identity: ProducerIdentity, positions: Mapping[int, int], touched: Collection[int]) -> None:
        """Adds the positions of the touched partitions to the open transaction."""
        texts: dict[str, dict[int, list[str]]] = {}
        for one in touched:
            texts.setdefault(self._group(one), {})[one % self._count] = [self._marker]
        for partition, offset in sorted(positions.items()):
            place = texts.get(self._group(partition), {}).get(partition % self._count)
            if place is not None:
                place.append(f"{partition}:{offset}")
        for group, places in texts.items():
            entries = {place: Position(positions.get(place, 0), " ".join(words)) for place, words in places.items()}
            commit_in_transaction(self._cluster, self._name, identity, group, self.target, entries)

    def end(self, identity: ProducerIdentity, *, until_visible: bool) -> None:
        """Commits a transaction without records, which the producer has not begun."""
        end_transaction(self._cluster, self._name, identity, commit=True, until_visible=until_visible)

    def _group(self, partition: int) -> str:
        number = partition // PARTITIONS_PER_GROUP
        return f"{self._name}.{number}" if number else self._name
