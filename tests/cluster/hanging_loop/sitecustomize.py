"""Makes the event loop of a broker process hang: Python imports this by itself when its directory is on PYTHONPATH.

On SIGUSR1 the main thread, which runs the loop, does nothing as long as the file that SKEP_TEST_HANGS names is there.
The other threads run on, as they do when a request takes too long.
"""

import os
import signal
import time
from types import FrameType


def _hang(number: int, frame: FrameType | None) -> None:
    while os.path.exists(os.environ["SKEP_TEST_HANGS"]):
        time.sleep(0.02)


if "SKEP_TEST_HANGS" in os.environ:
    signal.signal(signal.SIGUSR1, _hang)
