"""Ending the logs of a directory, and removing what earlier lives of it have left."""

import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.storage.file_names import DELETED
from skep.storage.log.log import Log

logger = logging.getLogger(__name__)

_CLOSING_THREADS = 8


def close_logs(logs: Iterable[Log]) -> bool:
    """Flushes them all; whether a clean start is possible. In threads, because a thousand syncs one after the other
    would be a long stop."""
    is_clean = True
    with ThreadPoolExecutor(_CLOSING_THREADS, "closing") as threads:
        running = []
        for log in logs:
            try:
                plan = log.closing_plan()
            except StorageError as error:
                logger.error("%s: cannot be closed: %s", log.topic_partition, error)
                is_clean = False
                continue
            if plan is not None:
                running.append((log, plan, threads.submit(plan.run)))
        for log, plan, future in running:
            try:
                future.result()
                log.flushed(plan)
            except StorageError as error:
                log.flush_failed(plan, error)
                is_clean = False
    for log in logs:
        is_clean &= log.flushed_offset == log.log_end_offset and log.failure is None
        log.release()
    return is_clean


def remove_leftovers(files: Files, paths: Iterable[str]) -> None:
    """Directories of deleted partitions, and files of segments that are no more.

    When the disk refuses to remove one, the others go; then StorageError.
    """
    synced: set[str] = set()
    refusal: StorageError | None = None
    for path in paths:
        directory = os.path.dirname(path)
        try:
            if directory not in synced:
                if not files.exists(directory):
                    continue  # the partition was moved away meanwhile, and what is in it goes with it
                # The new name first: if the old one came back after a crash, half a log would come back with it.
                files.sync_directory(directory)
                synced.add(directory)
            if path.endswith(DELETED):
                files.remove(path)
            else:
                files.remove_tree(path)
        except StorageError as error:
            refusal = error
    if refusal is not None:
        raise refusal
