"""Orders with the title and the price of what was ordered, into a topic and a table; the others to dead letters."""

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
    # By select: withColumn has Spark look at once what there is. From the second run on it then finds the products of
    # the run before, and this flow no longer waits for the one that fills them anew.
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
