"""The broker options of Kafka that Skep does not use, by name.

Tools and tests of clients set some of them on a broker and expect Kafka's response. Those that Kafka changes at run
time are kept and described, read-only and marked as unused. The others are refused as Kafka refuses them.

They are not accepted at start: somebody who sets ``sasl.kerberos.service.name`` there expects Kerberos, and a broker
that started without it would be a surprise. Passwords are never kept.
"""

from skep.base.config.option import Option, OptionType, anything, declared
from skep.base.config.topic_config import TopicConfig

_KEPT = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.threads",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "log.message.downconversion.enable",
        "log.preallocate",
        "metric.reporters",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.reader.threads",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
    }
)

_READ_AT_START = frozenset(
    {
        "alter.config.policy.class.name",
        "auto.include.jmx.reporter",
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "client.quota.callback.class",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "create.topic.policy.class.name",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "fetch.purgatory.purge.interval.requests",
        "initial.broker.registration.timeout.ms",
        "inter.broker.protocol.version",
        "log.dir.failure.timeout.ms",
        "log.flush.scheduler.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
        "log.initial.task.delay.ms",
        "num.replica.alter.log.dirs.threads",
        "offsets.commit.timeout.ms",
        "offsets.load.buffer.size",
        "offsets.topic.compression.codec",
        "principal.builder.class",
        "process.roles",
        "producer.id.expiration.check.interval.ms",
        "producer.purgatory.purge.interval.requests",
        "queued.max.requests",
        "replica.socket.receive.buffer.bytes",
        "reserved.broker.max.id",
        "security.providers",
        "server.max.startup.time.ms",
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "telemetry.max.bytes",
        "transaction.state.log.load.buffer.size",
        "transaction.state.log.min.isr",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
    }
)

_READ_AT_START_PREFIXES = (
    "alter.log.dirs.replication.",
    "controller.",
    "delegation.token.",
    "group.coordinator.",
    "group.share.",
    "kafka.metrics.",
    "metadata.log.",
    "metadata.max.",
    "metrics.",
    "password.encoder.",
    "remote.log.",
    "replication.quota.",
    "sasl.",
    "share.",
    "ssl.",
)
"""Kafka's families of options for what Skep does not have."""

_TOPIC_OPTIONS = declared(TopicConfig)
# A broker has some of them under the same name.
_OF_TOPICS_ONLY = {name: one for name, one in _TOPIC_OPTIONS.items() if one.broker_name != name}


def is_kept(name: str) -> bool:
    """Whether a value for this option is stored and described, and has no effect.

    Kafka keeps options of topics too if they are set on a broker.
    """
    return name in _KEPT or name in _OF_TOPICS_ONLY


def is_read_at_start(name: str) -> bool:
    """Whether this is an option of Kafka, not used here, that Kafka does not change at run time."""
    return name in _READ_AT_START or (name.startswith(_READ_AT_START_PREFIXES) and not is_kept(name))


def unused_option(name: str) -> Option:
    """Returns the description of an option that ``is_kept``."""
    doc = "Kafka has this option. Skep does not use it."
    if (of_topic := _OF_TOPICS_ONLY.get(name)) is not None:
        doc = "An option of topics, which has no effect on a broker."
        if of_topic.broker_name is not None:
            doc += f" The default of topics is {of_topic.broker_name}."
    return Option(name, "", OptionType.STRING, "", anything, doc, dynamic=False)
