"""The audit log as a file of JSON lines, written by a thread.

A full disk or a missing directory does not stop the broker: the records are dropped and counted, the problem is logged
once, and each later batch of records is tried again. The file is opened with mode 0600, and opened again when it was
renamed, so ``logrotate`` needs no signal.
"""

import json
import logging
import os
import queue
import threading
from typing import Any

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Records that wait for the thread. What comes while so many wait is dropped."""
MAX_BATCH = 500
STOP_S = 2.0
_MODE = 0o600


class AuditFile:
    """Owns the file and the thread, which starts with the first record."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.dropped = 0
        """Records that are lost and not yet counted in a line of the file."""
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._fd: int | None = None
        self._has_failed = False

    def put(self, record: dict[str, Any]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=STOP_S)
        except queue.Full:
            return
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < MAX_BATCH:
                try:
                    batch.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            self._write([record for record in batch if record is not None])
            if batch[-1] is None:
                self._close_file()
                return

    def _write(self, records: list[dict[str, Any]]) -> None:
        dropped = self.dropped
        if dropped and records:
            records.insert(0, {"time": records[0]["time"], "event": "dropped", "count": dropped, "why": "not written"})
        text = "".join([json.dumps(record, ensure_ascii=True) + "\n" for record in records])
        try:
            self._append(text.encode())
        except OSError as error:
            self.dropped += len(records) - bool(dropped)
            self._close_file()
            if not self._has_failed:
                logger.error("the audit log %s cannot be written, records are lost: %s", self.path, error)
            self._has_failed = True
            return
        self.dropped -= dropped
        if self._has_failed:
            logger.warning("the audit log %s is written again", self.path)
        self._has_failed = False

    def _append(self, data: bytes) -> None:
        if self._fd is None or not self._is_current(self._fd):
            self._close_file()
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        size = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            # Half a line would spoil the next one.
            os.ftruncate(self._fd, size)
            raise

    def _is_current(self, fd: int) -> bool:
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(fd))

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
