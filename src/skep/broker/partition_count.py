"""How many partitions there are, counting those that are being made: what ``skep.max.partitions`` is held against."""

from skep.metadata.cluster_image import ClusterImage


class PartitionCount:
    """Counts the partitions of an image; ``in_the_making`` are those that were let through and are not in it yet."""

    def __init__(self) -> None:
        self.in_the_making = 0
        self._image: ClusterImage | None = None
        self._in_image = 0

    def held(self, image: ClusterImage) -> int:
        # Counted once per image: a request may ask for ten thousand topics, there may be as many, and most are refused.
        if image is not self._image:
            self._image = image
            self._in_image = sum(len(topic.partitions) for topic in image.topics.values())
        return self._in_image + self.in_the_making
