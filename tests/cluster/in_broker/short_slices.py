"""Makes every slice of a broker process end after one step, as on a broker that has much else to do.

``SKEP_TEST_SLICE_S`` is the length of a slice in seconds.
"""

import os

if "SKEP_TEST_SLICE_S" in os.environ:
    from skep.base.loop import slicer

    slicer.SLICE_S = float(os.environ["SKEP_TEST_SLICE_S"])
