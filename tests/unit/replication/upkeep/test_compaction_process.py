"""The broker's end of the helper process: a pass that is given up before the process is there."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from skep.base.extras import how_to_install
from skep.replication.upkeep.compaction_process import CompactionProcess, HelperFailed
from skep.storage.compaction.compaction_plan import CompactionRequest

REQUEST = CompactionRequest(
    directory="nowhere", segments=[(0, 100)], first_dirty_offset=0, end_offset=10, high_watermark=10, now_ms=0,
    delete_retention_ms=0, segment_bytes=1000, segment_index_bytes=1000, index_interval_bytes=100, map_bytes=1000,
    max_bytes_per_second=0, aborted=[], last_records=[],
)  # fmt: skip


async def no_group(group: object) -> None:
    raise AssertionError(f"nobody wants {group}")


def test_a_pass_that_is_given_up_while_the_process_starts_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who deletes the topic would wait for the pass to come to its first group."""
    real_start = asyncio.create_subprocess_exec
    started: list[asyncio.subprocess.Process] = []

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as executor:
            helper = CompactionProcess(str(tmp_path), executor)

            async def start(*arguments: str, **options: object) -> asyncio.subprocess.Process:
                helper.kill()
                started.append(await real_start(*arguments, **options))
                return started[0]

            monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
            with pytest.raises(HelperFailed, match="cancelled before it began"):
                await helper.run(REQUEST, no_group)
            await started[0].wait()
            await helper.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert not psutil.pid_exists(started[0].pid), "and the process does not stay"


def test_without_a_compiler_the_first_pass_says_once_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*arguments: str, **options: object) -> None:
        raise OSError("no processes left")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    caplog.set_level("INFO")

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as executor:
            helper = CompactionProcess(str(tmp_path), executor)
            for _ in range(2):
                with pytest.raises(HelperFailed, match="no processes left"):
                    await helper.run(REQUEST, no_group)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert [record.getMessage() for record in caplog.records] == [
        "compaction runs as plain Python, some fifty times slower than compiled: numba is not installed: "
        + how_to_install("fast")
    ]
