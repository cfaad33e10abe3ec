"""How a fenced producer is told so, in the words that its version has."""

from skep.base.errors import ErrorCode
from skep.broker.request import Request


def fenced_code(request: Request, code: ErrorCode, knows_producer_fenced: int) -> ErrorCode:
    """PRODUCER_FENCED from that version of the API on; before, there was only INVALID_PRODUCER_EPOCH (KIP-588)."""
    if code is ErrorCode.producer_fenced and request.version < knows_producer_fenced:
        return ErrorCode.invalid_producer_epoch
    return code
