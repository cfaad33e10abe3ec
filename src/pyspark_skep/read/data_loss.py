"""Data loss: records that a query should have read are gone. The option ``failOnDataLoss`` decides what happens."""

import logging

_log = logging.getLogger(__name__)


class DataLoss(Exception):
    """Records that should have been read are gone, and ``failOnDataLoss`` is true."""


def report_loss(text: str, *, fail: bool) -> None:
    """Raises DataLoss, or logs a warning when the query continues without the records."""
    if fail:
        raise DataLoss(f"{text}. Records may be lost; set failOnDataLoss=false to continue with what is left")
    _log.warning("%s. Records may be lost; the query continues, because failOnDataLoss is false", text)
