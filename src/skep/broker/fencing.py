"""The error code for a fenced producer, which depends on the version of the API."""

from skep.base.errors import ErrorCode
from skep.broker.request import AnyRequest


def fenced_code(request: AnyRequest, code: ErrorCode, has_producer_fenced: int) -> ErrorCode:
    """Returns PRODUCER_FENCED from version ``has_producer_fenced`` on, and INVALID_PRODUCER_EPOCH before it
    (KIP-588)."""
    if code is ErrorCode.producer_fenced and request.version < has_producer_fenced:
        return ErrorCode.invalid_producer_epoch
    return code
