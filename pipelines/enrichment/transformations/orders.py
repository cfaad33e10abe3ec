"""Orders with the title and price of their product, in a topic and a table. Bad orders go to a dead-letter topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_skep.parsing import dead_letters, parse_json

BOOTSTRAP = spark.conf.get("skep.bootstrap")
ORDER = "id BIGINT NOT NULL, product STRING NOT NULL, quantity INT NOT NULL"


@dp.temporary_view
def checked_orders() -> DataFrame:
    records = (
        spark.readStream.format("skep")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    orders = parse_json(records, ORDER)
    products = spark.read.table("products")
    joined = orders.join(F.broadcast(products), F.col("data.product") == F.col("product"), "left")
    unknown = F.when(F.col("title").isNull(), F.concat(F.lit("no product '"), F.col("data.product"), F.lit("'")))
    # select, not withColumn: withColumn makes Spark resolve the tables at once. From the second run on it would find
    # the products of the previous run, and this flow would not wait for the flow that fills them again.
    origin = ("key", "value", "topic", "partition", "offset", "timestamp")
    return joined.select(*origin, "data", "title", "price", F.coalesce("error", unknown).alias("error"))


@dp.table
def sales() -> DataFrame:
    sold = spark.readStream.table("checked_orders").where("error IS NULL")
    return sold.select("data.*", "title", (F.col("price") * F.col("data.quantity")).alias("amount"))


dp.create_sink("sales_topic", "skep", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "sales"})


@dp.append_flow(target="sales_topic")
def sales_to_topic() -> DataFrame:
    sales = spark.readStream.table("sales")
    return sales.select(F.col("id").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value"))


dp.create_sink(
    "bad_orders_topic",
    "skep",
    {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "orders.bad", "includeHeaders": "true"},
)


@dp.append_flow(target="bad_orders_topic")
def bad_orders_to_topic() -> DataFrame:
    return dead_letters(spark.readStream.table("checked_orders"))
