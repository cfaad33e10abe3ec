"""What importing the errors brings along."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["skep.base.errors", "pyspark_skep", "skep.client.fetch.partition_reader"])
def test_hypothesis_is_hidden_from_kio_and_from_nobody_else(module):
    code = (
        f"import sys, {module}\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'hypothesis']\n"
        "import hypothesis.strategies\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
