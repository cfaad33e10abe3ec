"""A cluster as one broker's handlers see it: the others are registrations and records without a process behind them."""

from dataclasses import replace

from skep.metadata.layout import broker_key
from skep.metadata.model import BrokerRecord, PartitionRecord


def register(broker, *numbers, **fields):
    for number in numbers:
        broker.run(broker.services.catalog.register_broker(BrokerRecord(number, "h", 9000 + number, **fields)))


def kill(broker, *numbers):
    """Takes registrations out of the store and the image."""
    current = broker.services.catalog._current

    async def without(number):
        async with current.lock:
            await broker._store.delete(broker_key(number))
            current.set_image(broker.image.without_broker(number))

    for number in numbers:
        broker.run(without(number))


def partition(replicas, isr=None, leader=None, epoch=0, adding=(), removing=(), last_isr=(), reports=()):
    isr = replicas if isr is None else isr
    leader = replicas[0] if leader is None else leader
    moves = tuple(adding), tuple(removing)
    return PartitionRecord(tuple(replicas), tuple(isr), leader, epoch, *moves, tuple(last_isr), tuple(reports))


def set_partitions(broker, name, *partitions):
    broker.run(broker.services.catalog.change_topic(name, lambda topic: replace(topic, partitions=partitions)))


def topic_with(broker, name, *partitions, **config):
    config = {option.replace("_", "."): text for option, text in config.items()}
    broker.run(broker.services.catalog.create_topic(name, [one.replicas for one in partitions], config))
    set_partitions(broker, name, *partitions)


def partitions_of(broker, name):
    return list(broker.image.topics[name].partitions)
