"""The options of ``skep pipeline run`` that are refused before anything is started."""

from pathlib import Path
from typing import Any

import pytest

from skep.cli.failures import UsageError
from skep.cli.spark.pipeline_commands import run


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"continuous": True, "every": "1m"}, "^--continuous and --every cannot be used together$"),
        ({"every": "0s"}, "^--every 0s: expected more than nothing; --continuous runs whenever"),
        ({"every": "soon"}, "^--every: 'soon' is not a duration; expected one like 1h30m"),
        ({"patience": "60"}, "^--patience: '60' is not a duration"),
        ({"full_refresh_all": True, "refresh": ["orders"]}, "^--full-refresh-all cannot be used with --refresh"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        run(tmp_path, **options)
