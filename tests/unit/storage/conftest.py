"""What the storage tests share: logs over files in memory, batches, and reading a log as a consumer does."""

import uuid
from collections.abc import Sequence

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.records.batch import BatchHeader, is_intact, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.record import batches_in
from skep.storage.log.log import Appended, Log
from skep.storage.log.recovery import LogOnDisk, load_log
from tests.memory_files import MemoryFiles

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)


class StorageKit:
    """Has no state, so that one serves all tests, property tests too."""

    now_ms = NOW_MS
    partition = PARTITION
    path = f"/data/{PARTITION}"

    def files(self) -> MemoryFiles:
        files = MemoryFiles()
        files.make_directory("/data")
        return files

    def log(
        self,
        config: TopicConfig | None = None,
        files: MemoryFiles | None = None,
        *,
        recovery_point: int | None = None,
        log_start_offset: int = 0,
    ) -> Log:
        """The log in these files, after a clean stop or, with a recovery point, after a crash."""
        files = files or self.files()
        config = config or TopicConfig()
        point = None if recovery_point is None else Offset(recovery_point)
        disk = LogOnDisk(files, self.path, PARTITION, point, Offset(log_start_offset))
        content = load_log(disk, config.index_interval_bytes, NOW_MS)
        log = Log(files, self.path, PARTITION, uuid.UUID(int=1), config, content)
        log.settle()
        return log

    def batch(self, timestamps: int | Sequence[int] = 1, size: int = 10, **options: int) -> bytes:
        """A batch of so many records, or with one record per timestamp."""
        if isinstance(timestamps, int):
            timestamps = [NOW_MS] * timestamps
        return build_batch([NewRecord(b"k", b"v" * size, timestamp) for timestamp in timestamps], **options)

    def append(self, log: Log, *args: object, epoch: int = 0, now_ms: int = NOW_MS, **options: int) -> Appended:
        batch = self.batch(*args, **options)
        return log.append(batch, read_header(batch), LeaderEpoch(epoch), now_ms)

    def batches(self, log: Log, max_bytes: int = 1 << 20) -> list[tuple[BatchHeader, bytes]]:
        """All batches from the log start to the end."""
        found: list[tuple[BatchHeader, bytes]] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            piece = log.read(offset, max_bytes, up_to=log.log_end_offset, at_least_one=True)
            assert piece.file is not None
            whole = list(batches_in(piece.file.read(piece.position, piece.size)))
            assert sum(len(batch) for _, batch in whole) == piece.size, "only whole batches"
            assert all(is_intact(batch) for _, batch in whole)
            found += whole
            assert piece.next_offset == whole[-1][0].next_offset
            offset = piece.next_offset
        return found

    def offsets(self, log: Log) -> list[int]:
        return [
            offset
            for header, _ in self.batches(log)
            for offset in range(header.base_offset, header.next_offset)
            if offset >= log.log_start_offset
        ]


@pytest.fixture(scope="session")
def kit() -> StorageKit:
    return StorageKit()
