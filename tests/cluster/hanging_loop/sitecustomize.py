"""Makes the event loop of a broker process hang: Python imports this by itself when its directory is on PYTHONPATH.

On SIGUSR1 the main thread, which runs the loop, does nothing for as many seconds as SKEP_TEST_HANG_S says. The other
threads run on, as they do when a request takes too long.
"""

import os
import signal
import time

if "SKEP_TEST_HANG_S" in os.environ:
    signal.signal(signal.SIGUSR1, lambda number, frame: time.sleep(float(os.environ["SKEP_TEST_HANG_S"])))
