"""Prints docs/CONFIGURATION.md, COMPATIBILITY.md and SPARK-OPTIONS.md from the code's own tables: ``make docs``."""

import inspect
from pathlib import Path

from kio.schema.index import api_key_map

from pyspark_skep.given_options import SECURITY
from pyspark_skep.read import read_options
from pyspark_skep.write import write_options
from skep.base.config.broker_config import ALIASES, BrokerConfig, topic_defaults_by_broker_name
from skep.base.config.group_config import GROUP_OPTIONS
from skep.base.config.option import Option, declared
from skep.base.config.topic_config import NEVER, TopicConfig
from skep.broker.dispatch import HANDLERS
from skep.wire.apis import ADVERTISED_NEWEST, ADVERTISED_OLDEST, NOT_ADVERTISED, SERVED, SKEP_COMMAND

DOCS = Path(__file__).parents[2] / "docs"

NOT_SERVED = {
    "Security": "38 39 40 41",
    "Streams groups": "88 89",
    "Between brokers and a KRaft controller": "56 58 62 63 67 73 80 81 82",
    "KRaft's own": "52 53 54 57 59 70",
    "Telemetry": "71 72",
}

CONFIGURATION_HEAD = """# Configuration

<!-- Printed by `make docs` from the option tables in src/skep/base; a test fails when it is stale. -->

Options have Kafka's names and Kafka's meaning where Kafka has the thing; those that begin with `skep.` are Skep's own.
They come from a TOML file (`skep serve --config skep.toml`), from the environment (`SKEP_NUM_PARTITIONS=4` is
`num.partitions=4`), from `--set num.partitions=4`, and from the flags of `skep serve`; the later one wins. A bad
value is refused with the file and line, or the variable, that it comes from. A variable `SKEP_...` that is no option is
reported with the nearest name, and ignored.

*At run time* says whether the option can be changed without a restart, with `skep cluster config` for brokers, `skep
topics alter` for topics, or any Kafka tool (IncrementalAlterConfigs). A changed option is kept over restarts.
"""

COMPATIBILITY_HEAD = """# Compatibility

<!-- Printed by `make docs` from the table of served APIs and the handlers' docstrings; a test fails when stale. -->

Skep speaks Kafka's protocol. Stock clients that are run against it in the tests: confluent-kafka (librdkafka),
kafka-python, aiokafka, kcat. Share groups are also run with franz-go 1.22.2, its own test of them (TestShareGroupETL)
included, and with Kafka's Java consumer 4.3 (`make test-clients`). What is listed here as served works in all its
versions; what is not served is not advertised, so that clients find out by ApiVersions and say so.
"""

SPARK_SECURITY = """## Security

For reading and writing. All names of Java's clients and of librdkafka work, with `kafka.` in front. Settings may also
be in the file that the environment variable `SKEP_COMMAND_CONFIG` of the driver names (`security.protocol=SASL_SSL` and
so on); an option wins. Skep shows no secret in plans, progress, checkpoints or errors.
"""

SPARK_OPTIONS_HEAD = """# Options of the Spark data source

<!-- Printed by `make docs` from the option tables in src/pyspark_skep; a test fails when it is stale. -->

For `spark.read`, `readStream`, `write` and `writeStream` with `format("skep")`. Names, values and meaning are those of
Spark's own Kafka connector. Upper and lower case in names are the same. An option that is in none of these tables is
refused, with the reason where there is one; so are settings of Kafka's Java clients (`kafka.*`) that would do nothing.
What the rows look like, and what is promised: [SPARK.md](SPARK.md).
"""


def configuration() -> str:
    broker = declared(BrokerConfig).values()
    topic = sorted(declared(TopicConfig).values(), key=lambda option: option.name)
    defaults = sorted(topic_defaults_by_broker_name().items())
    lines = [
        CONFIGURATION_HEAD,
        "## Topics",
        "",
        "| option | default | at run time | what it does |",
        "|---|---|---|---|",
    ]
    lines += [_option_row(option, option.name) for option in topic]
    lines += [
        "",
        "## Groups",
        "",
        "Options of consumer groups (KIP-848) and share groups (KIP-932). The broker sets limits for most.",
        "",
    ]
    lines += ["| option | default | what it does |", "|---|---|---|"]
    for name, option in GROUP_OPTIONS.items():
        default = f"`{option.broker_name}`" if option.broker_name else _default(option)
        lines.append(f"| `{name}` | {default} | {option.doc} |")
    lines += ["", "## Broker: defaults of topics", ""]
    lines += ["The values for topics that do not set the option themselves.", ""]
    lines += ["| option | default | sets the topic option |", "|---|---|---|"]
    lines += [f"| `{name}` | {_default(option)} | `{option.name}` |" for name, option in defaults]
    lines += ["", "## Broker", "", "| option | default | at run time | what it does |", "|---|---|---|---|"]
    lines += [_option_row(option, option.name) for option in sorted(broker, key=lambda option: option.name)]
    lines += [
        "",
        "Aliases: " + ", ".join(f"`{a}` for `{t}`" for a, (t, _) in ALIASES.items()) + ".",
    ]
    return "\n".join(lines) + "\n"


def _option_row(option: Option, name: str) -> str:
    return f"| `{name}` | {_default(option)} | {'yes' if option.dynamic else 'no'} | {option.doc} |"


def _default(option: Option) -> str:
    if option.default == NEVER:
        return "never"
    text = option.show(option.default)
    return f"`{text}`" if text else "empty"


def spark_options() -> str:
    lines = [SPARK_OPTIONS_HEAD]
    for title, config, of_spark, refused in (
        ("Reading", read_options.ReadOptions, {}, read_options.REFUSED),
        ("Writing", write_options.WriteOptions, write_options.SPARKS_OWN, write_options.REFUSED),
    ):
        lines += [f"## {title}", "", "| option | default | what it does |", "|---|---|---|"]
        lines += [f"| `{row.name}` | {_unless_absent(row)} | {row.doc} |" for row in declared(config).values()]
        lines += [f"| `{name}` |  | {doc} |" for name, doc in of_spark.items()]
        lines += ["", "| refused | why |", "|---|---|"]
        lines += [f"| `{name}` | {why} |" for name, why in refused.items()]
        lines += [""]
    lines += [SPARK_SECURITY, "| option | what it does |", "|---|---|"]
    lines += [f"| `{name}` | {doc} |" for name, doc in SECURITY.items()]
    return "\n".join([*lines, ""])


def _unless_absent(row: Option) -> str:
    return _default(row) if row.default not in ("", (), 0) or row.default is False else ""


def compatibility() -> str:
    lines = [COMPATIBILITY_HEAD, "## Served", "", "| key | API | versions |", "|---|---|---|"]
    lines += [f"| {api.key} | [{api.name}](#{api.name.lower()}) | {api.oldest} to {api.newest} |" for api in _served()]
    advertised = ", ".join(
        f"{SERVED[key].name} is advertised from {oldest}" for key, oldest in ADVERTISED_OLDEST.items()
    )
    lines += ["", f"{advertised}, because librdkafka switches compression off otherwise (KAFKA-18659)."]
    for key, newest in ADVERTISED_NEWEST.items():
        lines += [f"{SERVED[key].name} is advertised up to {newest}: what is newer is between brokers."]
    hidden = ", ".join(SERVED[key].name for key in sorted(NOT_ADVERTISED - {SKEP_COMMAND.key}))
    lines += [f"Not advertised, because they are between brokers: {hidden}."]
    lines += [
        f"{SKEP_COMMAND.name} is not Kafka's but Skep's own, and not advertised either: no client meets it by chance."
    ]
    lines += [""]
    for api in _served():
        text = inspect.getdoc(HANDLERS[api.key])
        lines += [f"### {api.name}", "", "```text", text.split("\n", 1)[1].strip("\n"), "```", ""]
    lines += ["## Not served", "", "| what | APIs |", "|---|---|"]
    for what, keys in NOT_SERVED.items():
        names = [f"{_camel(api_key_map[int(key)])} ({key})" for key in keys.split() if int(key) in api_key_map]
        lines.append(f"| {what} | {', '.join(names)} |")
    lines += ["", NOTES]
    return "\n".join(lines) + "\n"


NOTES = """## Differences from Kafka

- Record timestamps: Kafka opens every batch and looks at each record; Skep takes the first and the greatest timestamp
  from the batch's header, and so trusts the producer that wrote it. `message.timestamp.before.max.ms` and
  `after.max.ms` are checked against these two.
- A topic with a `compression.type` other than `producer` compresses batches of another codec again, with the default
  level of the codec (`compression.gzip.level` and the others are not used), and refuses those that decompress to more
  than 32 MiB.
- A batch for a compacted topic may have at most `skep.max.compacted.batch.records` records and decompress to at most
  32 MiB, because each of its records is checked for a key when it is produced.
- A topic with `flush.messages=1` syncs before it acknowledges, many requests sharing one sync, and readers see a record
  when it is on the disk. With other values a sync is begun in the background when it is due.
- Quotas are measured with a leaky bucket, not with eleven samples: a client may use the quota of half a second at once
  (a twentieth of `quota.window.*`), where Kafka lets it use that of ten seconds and then stops it for as long. A fetch
  gets no more than half of that, or one batch, which is paid for afterwards. Each broker counts
  controller mutations itself. `request_percentage` is a share of the one event loop: 100 is all of it; work after a
  wait is not counted. Connections above `connection_creation_rate` wait for a second at most and are then
  served; those that would wait for longer are closed at once, as Kafka does with all of them.
- Consumer groups (KIP-848). A regular expression finds internal topics only if it has `__` in it; `\\b` and classes of
  Unicode properties are refused. A large group that changes quickly is assigned less often, in proportion to what an
  assignment costs, where Kafka has `group.consumer.assignment.interval.ms`. A static member may repeat a join whose
  response was lost. A heartbeat to a group that has become a classic one gets UNKNOWN_MEMBER_ID, so the member joins
  again. A classic group is upgraded although its assignments carry user data, if the assignor is one of the four that
  come with clients: the assignments of librdkafka's cooperative-sticky always carry some. A consumer group of more than
  100 classic members becomes a classic group shortly after the last member of the new protocol has left, not with its
  leave.
- Share groups (KIP-932). A member that sends no heartbeats for the session timeout loses its share sessions and what it
  holds; in Kafka its locks have to expire. A group that was deleted and created again begins again, also for leaders
  that still have a session of the first one.
- Produce requests of one connection overlap while they wait for a sync; their appends and responses keep their order.
"""


def _served():
    return sorted(SERVED.values())


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


PRINTED = {"CONFIGURATION.md": configuration, "COMPATIBILITY.md": compatibility, "SPARK-OPTIONS.md": spark_options}


if __name__ == "__main__":
    for name, text in PRINTED.items():
        (DOCS / name).write_text(text())
        print(f"wrote docs/{name}")
