"""Closes the logs of a data directory when the broker stops."""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from skep.base.errors import StorageError
from skep.storage.log.log import Log

logger = logging.getLogger(__name__)

_CLOSING_THREADS = 8


def close_logs(logs: Iterable[Log]) -> bool:
    """Flushes and releases all logs; returns whether the shutdown is clean.

    The plans run in threads, because a thousand syncs one after the other take long.
    """
    is_clean = True
    with ThreadPoolExecutor(_CLOSING_THREADS, "closing") as threads:
        running = []
        for log in logs:
            try:
                plan = log.closing_plan()
            except StorageError as error:
                logger.error("%s: cannot close the log: %s", log.topic_partition, error)
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
