"""What ``skep tls init`` prints: the options of a broker with these certificates, and the settings of each client."""

from pathlib import Path

LOCAL, PORT = "localhost", 9093
FROM_NAME = "RULE:^CN=([^,]+).*$/$1/, DEFAULT"


def broker_options(authority: Path, broker: Path, host: str | None, *, with_clients: bool) -> str:
    """Returns the options as TOML, for ``skep serve --config``. Without ``host`` it listens on loopback only."""
    listeners = [f'listeners = "SSL://{LOCAL}:{PORT}"']
    if host:
        listeners = [f'listeners = "SSL://0.0.0.0:{PORT}"', f'advertised.listeners = "SSL://{host}:{PORT}"']
    lines = [
        "# The broker's options, for a file that skep serve --config reads:",
        *listeners,
        'ssl.keystore.type = "PEM"',
        f'ssl.keystore.location = "{broker.absolute()}"',
        'ssl.truststore.type = "PEM"',
        f'ssl.truststore.location = "{authority.absolute()}"',
    ]
    if with_clients:
        lines += [
            "# Clients show their certificates. CN=alice is then User:alice:",
            'ssl.client.auth = "required"',
            f"ssl.principal.mapping.rules = '{FROM_NAME}'",
        ]
    return "\n".join([*lines, ""])


def client_settings(authority: Path, keystore: Path | None, host: str | None) -> str:
    """Returns the settings of a client that trusts ``authority`` and, if it has one, shows its certificate."""
    bootstrap = f"{host or LOCAL}:{PORT}"
    ca = str(authority.absolute())
    own = None if keystore is None else str(keystore.absolute())
    return "\n".join(
        [
            *_librdkafka(ca, own, bootstrap),
            *_kafka_python(ca, own, bootstrap),
            *_aiokafka(ca, own, bootstrap),
            *_java(ca, own, bootstrap),
            *_spark(ca, own, bootstrap),
            "# With users and passwords: SASL_SSL instead of SSL, and the settings of docs/SECURITY.md.",
        ]
    )


def _librdkafka(ca: str, own: str | None, bootstrap: str) -> list[str]:
    lines = [f"bootstrap.servers={bootstrap}", "security.protocol=SSL", f"ssl.ca.location={ca}"]
    if own:
        lines += [f"ssl.certificate.location={own}", f"ssl.key.location={own}"]
    return ["# confluent-kafka, kcat, and skep with --command-config:", *lines, ""]


def _kafka_python(ca: str, own: str | None, bootstrap: str) -> list[str]:
    shown = f", ssl_certfile={own!r}, ssl_keyfile={own!r}" if own else ""
    code = f"KafkaProducer(bootstrap_servers={bootstrap!r}, security_protocol='SSL', ssl_cafile={ca!r}{shown})"
    return ["# kafka-python:", code, ""]


def _aiokafka(ca: str, own: str | None, bootstrap: str) -> list[str]:
    shown = f", certfile={own!r}, keyfile={own!r}" if own else ""
    context = f"context = aiokafka.helpers.create_ssl_context(cafile={ca!r}{shown})"
    code = f"AIOKafkaProducer(bootstrap_servers={bootstrap!r}, security_protocol='SSL', ssl_context=context)"
    return ["# aiokafka:", context, code, ""]


def _java_settings(ca: str, own: str | None) -> list[tuple[str, str]]:
    settings = [
        ("security.protocol", "SSL"),
        ("ssl.truststore.type", "PEM"),
        ("ssl.truststore.location", ca),
    ]
    if own:
        settings += [("ssl.keystore.type", "PEM"), ("ssl.keystore.location", own)]
    return settings


def _java(ca: str, own: str | None, bootstrap: str) -> list[str]:
    lines = [f"{name}={value}" for name, value in _java_settings(ca, own)]
    return ["# Java, and Kafka's own tools with --command-config:", f"bootstrap.servers={bootstrap}", *lines, ""]


def _spark(ca: str, own: str | None, bootstrap: str) -> list[str]:
    options = [f'.option("kafka.{name}", "{value}")' for name, value in _java_settings(ca, own)]
    return ['# Spark, format "skep" or "kafka":', f'.option("kafka.bootstrap.servers", "{bootstrap}")', *options, ""]
