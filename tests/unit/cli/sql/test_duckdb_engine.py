"""What the DuckDB engine leaves out of its process, and that nobody misses it."""

import subprocess
import sys

LEFT_OUT = """
import sys
from skep.cli.sql.duckdb_engine import leave_out_pandas
finders = list(sys.meta_path)
leave_out_pandas()
import pyarrow as pa
pa.array([1, None, 2]), pa.table({"a": ["x"]})
assert "pandas" not in sys.modules, "a quarter of a second"
assert sys.meta_path == finders
assert pa.table({"a": [1]}).to_pandas()["a"].tolist() == [1]
"""


def test_arrow_does_without_pandas_until_somebody_wants_a_data_frame() -> None:
    ran = subprocess.run([sys.executable, "-c", LEFT_OUT], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
