"""The broker's side of the helper process that compacts (``storage/compaction/compaction_helper.py``)."""

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

from skep.base.errors import StorageError
from skep.base.extras import how_to_install
from skep.replication.upkeep.kernel_compilation import CACHE_DIRECTORY, is_compiler_installed
from skep.storage.compaction.compaction_helper import LENGTH, encode
from skep.storage.compaction.compaction_plan import CleanedGroup, CompactionRequest, PassResult

logger = logging.getLogger(__name__)


class DamagedLog(Exception):
    """The log is damaged; another attempt would have the same result."""


class HelperFailed(Exception):
    """The process could not be started, or ended before it responded; the next pass starts a new one."""


class CompactionProcess:
    """Owns the process, which is started when first needed. Runs one request at a time.

    The process ends with the broker, however the broker ends: its standard input is a pipe from here.
    """

    def __init__(self, data_directory: str, executor: Executor) -> None:
        self._cache_directory = os.path.join(data_directory, CACHE_DIRECTORY)
        self._executor = executor
        self._process: asyncio.subprocess.Process | None = None
        self._is_unwanted = False
        self._is_slow = not is_compiler_installed()

    async def run(self, request: CompactionRequest, on_group: Callable[[CleanedGroup], Awaitable[None]]) -> PassResult:
        """Runs one pass. Raises DamagedLog, StorageError or HelperFailed. When cancelled or failed, the process is gone
        afterwards."""
        is_done = self._is_unwanted = False
        try:
            loop = asyncio.get_running_loop()
            request_bytes = await loop.run_in_executor(self._executor, encode, request.to_json())
            process = await self._started()
            if self._is_unwanted:
                raise HelperFailed("the compaction pass was cancelled before it began")
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(request_bytes)
            await process.stdin.drain()
            while "group" in (message := await _read(process.stdout)):
                await on_group(CleanedGroup(**message["group"]))
            is_done = True
        except asyncio.IncompleteReadError as error:
            raise HelperFailed("the compaction process has ended") from error
        except OSError as error:
            raise HelperFailed(f"the compaction process: {error}") from error
        finally:
            if not is_done:
                self.kill()
        if "damaged" in message:
            raise DamagedLog(message["damaged"])
        if "refused" in message:
            raise StorageError(message["refused"])
        return PassResult(**message["result"])

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._say_once_if_slow()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "skep.storage.compaction.compaction_helper",
                self._cache_directory,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        return self._process

    def _say_once_if_slow(self) -> None:
        if self._is_slow:
            self._is_slow = False
            logger.info(
                "compaction runs as plain Python, some fifty times slower than compiled: numba is not installed: %s",
                how_to_install("fast"),
            )

    def kill(self) -> None:
        """Ends the process and the pass in progress, also while the process is still being started."""
        self._is_unwanted = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """Ends the process. Returns when it is gone."""
        if self._process is not None:
            self.kill()
            await self._process.wait()
            self._process = None


async def _read(stream: asyncio.StreamReader) -> dict[str, Any]:
    (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
    message: dict[str, Any] = json.loads(await stream.readexactly(length))
    return message
