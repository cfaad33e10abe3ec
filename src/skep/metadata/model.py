"""The records of the metadata store, as frozen objects, and their encoding: JSON with a version, ``{"v": 1, ...}``.

A partition is an array, ``[replicas, isr, leader, leader_epoch]``. A topic is one value in the store, and ZooKeeper
limits values to 1 MB: as arrays, 10,000 partitions of three replicas take 210 KB. During a reassignment a partition has
two more elements, ``adding`` and ``removing``.

The state of a partition's last ISR is in a field of the topic, ``recovery``, by partition number:
``{"0": [last_isr, reports]}``. The field exists only while a partition has such state. A version of Skep that does not
know the field reads the rest of the record.
"""

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from skep.base.errors import StoreUnavailable
from skep.base.ids import BrokerId, LeaderEpoch, Offset

RECORD_VERSION = 1
NO_LEADER = BrokerId(-1)


class UnreadableRecord(StoreUnavailable):
    """A value in the store that this version of Skep cannot read: written by a newer version, or damaged."""


NO_BATCH = LeaderEpoch(-1)
NEW_DISK = LeaderEpoch(-2)


class LogReport(NamedTuple):
    """The length of one replica's log: the leader epoch of its last batch, and its log end offset.

    The epoch is NO_BATCH for a log that never had a batch, and NEW_DISK if the disk replaced one that may have had
    batches. The report holds for the registration ``broker_epoch`` of the broker. A later process may have another log
    but not another disk, so NEW_DISK stays valid.
    """

    broker: BrokerId
    broker_epoch: int
    last_epoch: LeaderEpoch
    log_end_offset: Offset


class PartitionRecord(NamedTuple):
    """The replicas of a partition. A tuple, not a dataclass: a broker makes tens of thousands at start-up.

    During a reassignment ``replicas`` has the old and the new replicas, the target ones first; ``adding`` are those
    that hold no copy yet, ``removing`` those that are removed when the others are in sync.

    ``isr`` are the replicas that are known to have all acknowledged records. It is empty after all of them may have
    lost records. ``last_isr`` has the members of the last ISR with which a leader is known to have acknowledged
    anything; it is empty while that is ``isr``. ``reports`` exist only while there is no leader.
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    last_isr: tuple[BrokerId, ...] = ()
    reports: tuple[LogReport, ...] = ()

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas after the reassignment; the first of them is the preferred leader."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def is_undecided(self) -> bool:
        """Whether no replica is known to have all records. The longest log is elected (``controller/elections.py``)."""
        return not self.isr

    @property
    def awaited(self) -> tuple[BrokerId, ...]:
        """The replicas that together have every acknowledged record that was not lost by all of them."""
        return tuple(broker for broker in self.replicas if broker in self.isr or broker in self.last_isr)

    def elected(self, leader: BrokerId, isr: Sequence[BrokerId]) -> "PartitionRecord":
        """Returns the record with this leader, or NO_LEADER, in the next leader epoch."""
        epoch = LeaderEpoch(self.leader_epoch + 1)
        # Without a leader, reports of new disks stay. The lengths of logs are reported again in each epoch.
        kept = tuple(one for one in self.reports if leader == NO_LEADER and one.last_epoch == NEW_DISK)
        return self.with_isr(isr)._replace(leader=leader, leader_epoch=epoch, reports=kept)

    def with_isr(self, isr: Sequence[BrokerId]) -> "PartitionRecord":
        """Returns the record with this ISR.

        Members that leave stay in ``last_isr``: whether a leader with the new ISR has acknowledged anything is not
        known yet.
        """
        awaited = self.awaited
        return self._replace(isr=tuple(isr), last_isr=() if set(awaited) <= set(isr) else awaited)

    def with_report(self, report: LogReport) -> "PartitionRecord":
        """Returns the record with a broker's report, in place of its earlier one."""
        if report.last_epoch == NO_BATCH and any(self._is_new_disk(one, report.broker) for one in self.reports):
            report = report._replace(last_epoch=NEW_DISK)
        if report in self.reports:
            return self
        others = tuple(one for one in self.reports if one.broker != report.broker)
        return self._replace(reports=(*others, report))

    def without_report(self, broker_id: BrokerId) -> "PartitionRecord":
        """Drops a broker's report when it restarts. A report of a new disk stays."""
        kept = tuple(one for one in self.reports if one.broker != broker_id or self._is_new_disk(one, broker_id))
        return self._replace(reports=kept)

    @staticmethod
    def _is_new_disk(report: LogReport, broker_id: BrokerId) -> bool:
        return report.broker == broker_id and report.last_epoch == NEW_DISK

    def _as_array(self) -> tuple[Any, ...]:
        return self[:6] if self.is_reassigning else self[:4]

    @classmethod
    def new(cls, replicas: Sequence[BrokerId]) -> "PartitionRecord":
        """A partition without data: every replica is in sync, the first one leads."""
        return cls(tuple(replicas), tuple(replicas), replicas[0], LeaderEpoch(0))


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic. ``config`` holds only overrides. ``version`` is the store's, for compare-and-set."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionRecord, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    version: int = 0

    def encode(self) -> bytes:
        partitions = [partition._as_array() for partition in self.partitions]
        recovery = {
            str(index): (partition.last_isr, partition.reports)
            for index, partition in enumerate(self.partitions)
            if partition.last_isr or partition.reports
        }
        more = {"recovery": recovery} if recovery else {}
        return encode_fields(id=self.topic_id.hex, partitions=partitions, config=dict(self.config), **more)

    @classmethod
    def decode(cls, name: str, value: bytes, version: int) -> "TopicRecord":
        fields = decode_fields(f"topic {name}", value)
        try:
            partitions = tuple(
                PartitionRecord(tuple(replicas), tuple(isr), leader, leader_epoch, *map(tuple, moves))
                for replicas, isr, leader, leader_epoch, *moves in fields["partitions"]
            )
            if "recovery" in fields:
                partitions = _with_recovery(partitions, fields["recovery"])
            return cls(name, uuid.UUID(hex=fields["id"]), partitions, fields["config"], version)
        except (LookupError, TypeError, ValueError) as error:
            raise UnreadableRecord(f"topic {name}: damaged metadata record ({error!r})") from error


def _with_recovery(partitions: tuple[PartitionRecord, ...], recovery: Mapping[str, Any]) -> tuple[PartitionRecord, ...]:
    changed = list(partitions)
    for index, (last_isr, reports) in recovery.items():
        changed[int(index)] = changed[int(index)]._replace(
            last_isr=tuple(last_isr), reports=tuple(LogReport(*report) for report in reports)
        )
    return tuple(changed)


class Endpoint(NamedTuple):
    """The advertised address of one listener."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A live broker and its advertised addresses. ``epoch`` grows with each registration in the cluster.

    ``host`` and ``port`` are for other brokers, the address of the listener that brokers use among themselves. Clients
    get the address of the listener that they use (``at``). A record of an earlier version of Skep has no endpoints.

    ``machine`` takes the place of the rack if none is set: replicas are placed on different machines if possible. A
    broker that is ``stopping`` wants its leaderships moved, and is not chosen for anything new.
    """

    id: BrokerId
    host: str
    port: int
    rack: str | None = None
    epoch: int = -1
    machine: str = ""
    stopping: bool = False
    endpoints: tuple[Endpoint, ...] = ()

    def at(self, listener: str) -> "BrokerRecord | None":
        """Returns the record with the address of a listener as host and port; None if the broker has no such one."""
        if not self.endpoints:
            return self
        for name, host, port in self.endpoints:
            if name == listener:
                return self if (host, port) == (self.host, self.port) else replace(self, host=host, port=port)
        return None

    @property
    def place(self) -> str:
        """The rack, or else the machine. It should not hold two replicas of a partition."""
        return self.rack or f"machine {self.machine}"

    def encode(self) -> bytes:
        return encode_fields(
            host=self.host,
            port=self.port,
            rack=self.rack,
            epoch=self.epoch,
            machine=self.machine,
            stopping=self.stopping,
            endpoints=self.endpoints,
        )

    @classmethod
    def decode(cls, broker_id: BrokerId, value: bytes) -> "BrokerRecord":
        fields = decode_fields(f"broker {broker_id}", value)
        try:
            return cls(
                broker_id,
                fields["host"],
                fields["port"],
                fields["rack"],
                fields["epoch"],
                fields.get("machine", ""),
                fields.get("stopping", False),
                tuple(Endpoint(*endpoint) for endpoint in fields.get("endpoints", ())),
            )
        except (KeyError, TypeError) as error:
            raise UnreadableRecord(f"broker {broker_id}: damaged metadata record ({error!r})") from error


@dataclass(frozen=True, slots=True)
class ControllerRecord:
    """The broker that elects leaders. ``epoch`` grows with each controller."""

    broker_id: BrokerId
    epoch: int

    def encode(self) -> bytes:
        return encode_fields(broker=self.broker_id, epoch=self.epoch)

    @classmethod
    def decode(cls, value: bytes) -> "ControllerRecord":
        fields = decode_fields("controller", value)
        try:
            return cls(BrokerId(fields["broker"]), fields["epoch"])
        except KeyError as error:
            raise UnreadableRecord(f"controller: damaged metadata record ({error!r})") from error


def encode_fields(**fields: Any) -> bytes:
    return json.dumps({"v": RECORD_VERSION, **fields}, separators=(",", ":")).encode()


def decode_fields(what: str, value: bytes) -> dict[str, Any]:
    """Returns the fields of a record. Raises UnreadableRecord, naming ``what``, if they cannot be read."""
    try:
        fields = json.loads(value)
        version = fields["v"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableRecord(f"{what}: damaged metadata record ({error!r})") from error
    if version != RECORD_VERSION:
        raise UnreadableRecord(
            f"{what}: metadata record of version {version}; this version of Skep reads {RECORD_VERSION}"
        )
    assert isinstance(fields, dict)
    return fields


def decode_field(what: str, value: bytes, name: str) -> Any:
    fields = decode_fields(what, value)
    if name not in fields:
        raise UnreadableRecord(f"{what}: damaged metadata record (no {name!r})")
    return fields[name]


def id_text(identifier: uuid.UUID) -> str:
    """Returns an id as Kafka writes it: 22 characters of base64."""
    return base64.urlsafe_b64encode(identifier.bytes).rstrip(b"=").decode()


def random_id() -> uuid.UUID:
    """Returns a random id. As in Kafka, its text has no dash, which would look like an option on a command line.

    Kafka also reserves 0 and 1; a version 4 UUID is neither.
    """
    while "-" in id_text(identifier := uuid.uuid4()):
        pass
    return identifier
