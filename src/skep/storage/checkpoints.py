"""Offset checkpoints of a data directory: one offset per partition, in Kafka's text format.

::

    0
    2
    orders 0 1042
    orders 1 977

Version, number of entries, then topic, partition and offset. Written atomically; a file that cannot be read means that
nothing is known, which costs recovery time and loses nothing.
"""

from collections.abc import Mapping

from skep.base.ids import Offset, TopicPartition


def encode_checkpoint(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    lines = ["0", str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def decode_checkpoint(data: bytes) -> dict[TopicPartition, Offset]:
    """ValueError when it is not such a file, or not all of it."""
    lines = data.decode("ascii").splitlines()
    if len(lines) < 2 or lines[0] != "0" or int(lines[1]) != len(lines) - 2:
        raise ValueError("not an offset checkpoint of version 0")
    offsets = {}
    for line in lines[2:]:
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, int(partition))] = Offset(int(offset))
    return offsets
