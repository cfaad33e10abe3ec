"""What tests change within a broker process. Python imports this by itself when its directory is on PYTHONPATH."""

import jumping_clock  # noqa: F401
import short_slices  # noqa: F401
import sync_journal  # noqa: F401
