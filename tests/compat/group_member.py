"""A consumer in a process of its own that is a member of a group: it can be frozen and killed like the real thing.

    python group_member.py '{"client": "confluent", "servers": ..., "topic": ..., "group": ...}'

Prints one JSON object a line: ``{"owned": [0, 2]}`` whenever its assignment has changed, ``{"read": [0, 17, "value"]}``
for each record, ``{"closed": true}`` at the end. SIGTERM makes it leave the group and stop.
"""

import asyncio
import json
import signal
import sys
from typing import Any

POLL_S = 0.05


class Reporter:
    """What has been printed, and whether it is time to stop."""

    def __init__(self) -> None:
        self.is_over = False
        self._owned: list[int] | None = None
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: Any) -> None:
        self.is_over = True

    def say(self, **what: Any) -> None:
        print(json.dumps(what), flush=True)

    def owns(self, partitions: Any) -> None:
        owned = sorted(partitions)
        if owned != self._owned:
            self._owned = owned
            self.say(owned=owned)


def confluent(reporter: Reporter, options: dict[str, Any]) -> None:
    from confluent_kafka import Consumer

    config = {
        "bootstrap.servers": options["servers"],
        "group.id": options["group"],
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
    }
    if options.get("protocol") == "consumer":
        # KIP-848: who gets what, and how long a session is, is the broker's business.
        config.update({"group.protocol": "consumer", "group.remote.assignor": options["strategy"]})
    else:
        config.update(
            {
                "partition.assignment.strategy": options["strategy"],
                "session.timeout.ms": options["session_ms"],
                "heartbeat.interval.ms": min(options["session_ms"] // 5, 1_000),
            }
        )
    if options.get("instance"):
        config["group.instance.id"] = options["instance"]
    consumer = Consumer(config)
    consumer.subscribe([options["topic"]])
    while not reporter.is_over:
        message = consumer.poll(POLL_S)
        reporter.owns(each.partition for each in consumer.assignment())
        if message is not None and message.error() is None:
            reporter.say(read=[message.partition(), message.offset(), message.value().decode()])
    consumer.close()


def kafka_python(reporter: Reporter, options: dict[str, Any]) -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.abstract import ConsumerProtocolAssignment
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    class FirstTakesAll(RangePartitionAssignor):
        """An assignor that nobody else knows: the member that comes first in the alphabet gets everything."""

        name = "first-takes-all"

        @classmethod
        def assign(cls, cluster: Any, members: Any) -> Any:
            first = min(member.member_id for member in members)
            everything = [(options["topic"], sorted(cluster.partitions_for_topic(options["topic"])))]
            return {
                member.member_id: ConsumerProtocolAssignment(0, everything if member.member_id == first else [], b"")
                for member in members
            }

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
        "first-takes-all": FirstTakesAll,
    }
    consumer = KafkaConsumer(
        options["topic"],
        bootstrap_servers=options["servers"],
        group_id=options["group"],
        auto_offset_reset="earliest",
        partition_assignment_strategy=[assignors[options["strategy"]]],
        session_timeout_ms=options["session_ms"],
        heartbeat_interval_ms=min(options["session_ms"] // 5, 1_000),
        auto_commit_interval_ms=200,
        group_instance_id=options.get("instance"),
    )
    # Nothing is joined before the first poll, and kafka-python must know the topic by then. It forgets that it wanted
    # metadata of a new topic when an older Metadata answer is still on its way (a TODO in its cluster.py). As a leader
    # it then assigns nothing and joins again once it knows more; and if a poll ends between the answers to JoinGroup
    # and SyncGroup of that second join, it takes nothing for pending any more (need_rejoin in coordinator/consumer.py
    # does not look at the join under way): its assignment stays unread and no heartbeat is sent, for good.
    while not consumer.partitions_for_topic(options["topic"]) and not reporter.is_over:
        pass
    while not reporter.is_over:
        batches = consumer.poll(timeout_ms=int(POLL_S * 1000))
        reporter.owns(each.partition for each in consumer.assignment())
        for records in batches.values():
            for record in records:
                reporter.say(read=[record.partition, record.offset, record.value.decode()])
    consumer.close()


def aio(reporter: Reporter, options: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    async def consume() -> None:
        consumer = AIOKafkaConsumer(
            options["topic"],
            bootstrap_servers=options["servers"],
            group_id=options["group"],
            auto_offset_reset="earliest",
            partition_assignment_strategy=(assignors[options["strategy"]],),
            session_timeout_ms=options["session_ms"],
            heartbeat_interval_ms=min(options["session_ms"] // 5, 1_000),
            auto_commit_interval_ms=200,
            group_instance_id=options.get("instance"),
        )
        async with consumer:
            while not reporter.is_over:
                batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                reporter.owns(each.partition for each in consumer.assignment())
                for records in batches.values():
                    for record in records:
                        reporter.say(read=[record.partition, record.offset, record.value.decode()])

    asyncio.run(consume())


CLIENTS = {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aio}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    reporting = Reporter()
    CLIENTS[given["client"]](reporting, given)
    reporting.say(closed=True)
