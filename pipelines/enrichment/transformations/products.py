"""The products, from a file. It is read in every run, so a changed price applies to the orders of the next run."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame

PRODUCTS = Path(__file__).resolve().parents[1] / "data" / "products.csv"


@dp.materialized_view
def products() -> DataFrame:
    return spark.read.csv(PRODUCTS.as_uri(), header=True, schema="product STRING, title STRING, price DECIMAL(10, 2)")
