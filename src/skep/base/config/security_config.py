"""The section ``security`` of the broker options: listeners' protocols, SASL, TLS, the authorizer, limits of strangers.

Each of these options may be set for one listener alone, with the prefix ``listener.name.<name in lower case>.``, and
for one SASL mechanism of it, with ``listener.name.<name>.<mechanism in lower case>.``. The longest prefix wins.
``security_of_listener`` gives the options as they apply there.

What decides who a client is (trusted CAs, mapping rules, users) and every path to a file is read at start only.
Otherwise ALTER_CONFIGS on the cluster would be enough to become any user, or to stop the broker by a path to a device.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from skep.base.config.option import (
    Option,
    OptionType,
    anything,
    at_least,
    between,
    declared,
    each_of,
    meant,
    one_of,
    option,
    parse_into,
    some_of,
)
from skep.base.errors import OptionError

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER = MECHANISMS = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
)
AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
    "skep",
)
"""Kafka's two names of an authorizer that reads ACLs, and a short one. Skep has one authorizer, under all names."""
_OPERATIONS = (
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
)
CALLBACK_HANDLERS = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{name}OAuthBearerValidatorCallbackHandler"
    for name in ("", "secured.")
)
NO_LIMIT = (1 << 31) - 1
LISTENER_PREFIX = "listener.name."

_TO_PEM = (
    "openssl pkcs12 -in keystore.p12 -out broker.pem (a JKS file first becomes one of PKCS12: keytool -importkeystore "
    "-srckeystore keystore.jks -destkeystore keystore.p12 -deststoretype PKCS12)"
)


def _is_pem(value: str) -> str | None:
    return None if value == "PEM" else f"only PEM is supported; convert the file with {_TO_PEM}"


def _has_no_password(value: str) -> str | None:
    if not value:
        return None
    return f"files in PEM form have no password of their own (ssl.key.password is that of the key). From JKS: {_TO_PEM}"


def _are_limits(values: tuple[str, ...]) -> str | None:
    for pair in values:
        host, _, number = pair.rpartition(":")
        if not host or not (number.isascii() and number.isdecimal()):
            return "must be a list of ADDRESS:NUMBER, e.g. 10.0.0.7:200"
    return None


@dataclass(frozen=True)
class SecurityConfig:
    insecure: bool = option(
        "skep.insecure",
        False,
        anything,
        "Whether a listener without authentication may be reached from other machines.",
        dynamic=False,
    )
    listener_security_protocol_map: tuple[str, ...] = option(
        "listener.security.protocol.map",
        tuple(f"{name}:{name}" for name in SECURITY_PROTOCOLS),
        anything,
        "The protocol of each listener: a list of NAME:PROTOCOL, with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        dynamic=False,
    )
    inter_broker_listener_name: str = option(
        "inter.broker.listener.name",
        "",
        anything,
        "The listener that brokers use among themselves. Empty: the one with security.inter.broker.protocol.",
        dynamic=False,
    )
    security_inter_broker_protocol: str = option(
        "security.inter.broker.protocol",
        PLAINTEXT,
        one_of(*SECURITY_PROTOCOLS),
        "The protocol that brokers use among themselves. If there is only one listener, it is that one's.",
        dynamic=False,
    )
    sasl_enabled_mechanisms: tuple[str, ...] = option(
        "sasl.enabled.mechanisms",
        (SCRAM_SHA_512,),
        each_of(*MECHANISMS),
        "The SASL mechanisms that clients may use: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
        dynamic=False,
    )
    sasl_mechanism_inter_broker_protocol: str = option(
        "sasl.mechanism.inter.broker.protocol",
        SCRAM_SHA_512,
        one_of(*MECHANISMS),
        "The SASL mechanism that brokers use among themselves.",
        dynamic=False,
    )
    sasl_jaas_config: str = option(
        "sasl.jaas.config",
        "",
        anything,
        "Users and the broker's own credentials, as Kafka writes them. Set it for a listener and a mechanism: "
        "listener.name.internal.plain.sasl.jaas.config.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    sasl_server_callback_handler_class: str = option(
        "sasl.server.callback.handler.class",
        "",
        one_of("", *CALLBACK_HANDLERS),
        "Accepted for the sake of Kafka's files, where OAUTHBEARER needs it: the names of Kafka's own class.",
        dynamic=False,
    )
    sasl_oauthbearer_jwks_endpoint_url: str = option(
        "sasl.oauthbearer.jwks.endpoint.url",
        "",
        anything,
        "Where the identity provider has the public keys of its tokens: an https address. OAUTHBEARER needs it.",
        dynamic=False,
    )
    sasl_oauthbearer_expected_issuer: str = option(
        "sasl.oauthbearer.expected.issuer",
        "",
        anything,
        "The claim iss that a token must have. OAUTHBEARER needs it.",
        dynamic=False,
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = option(
        "sasl.oauthbearer.expected.audience",
        (),
        anything,
        "The audiences (the claim aud) of which a token must have one. OAUTHBEARER needs it.",
        dynamic=False,
    )
    sasl_oauthbearer_sub_claim_name: str = option(
        "sasl.oauthbearer.sub.claim.name", "sub", anything, "The claim with the name of the user.", dynamic=False
    )
    sasl_oauthbearer_scope_claim_name: str = option(
        "sasl.oauthbearer.scope.claim.name",
        "scope",
        anything,
        "Accepted for the sake of Kafka's files: scopes mean nothing here, ACLs decide.",
        dynamic=False,
    )
    sasl_oauthbearer_clock_skew_seconds: int = option(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        between(0, 600),
        "By how much the clocks of the identity provider and the broker may differ.",
        dynamic=False,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = option(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        at_least(1000),
        "How often the keys are fetched. They are fetched soon after a token with an unknown key, too.",
        type=OptionType.LONG,
        dynamic=False,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = option(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        100,
        at_least(1),
        "The pause after a first failed fetch of the keys. It doubles with each further one.",
        type=OptionType.LONG,
        dynamic=False,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = option(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        10_000,
        at_least(1),
        "The longest pause after failed fetches of the keys.",
        type=OptionType.LONG,
        dynamic=False,
    )
    first_user: str = option(
        "skep.first.user",
        "",
        anything,
        "A user that is created at start, before clients are served, unless it exists: skep serve --user.",
        dynamic=False,
    )
    first_user_password_file: str = option(
        "skep.first.user.password.file",
        "",
        anything,
        "File with the password of that user: skep serve --password-file. It is read only if the user does not exist.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    sasl_server_max_receive_size: int = option(
        "sasl.server.max.receive.size",
        524_288,
        at_least(1024),
        "The largest request before authentication, in bytes. A connection that sends a larger one is closed.",
        dynamic=False,
    )
    connections_max_reauth_ms: int = option(
        "connections.max.reauth.ms",
        0,
        at_least(0),
        "How long a client is authenticated before it has to do it again (KIP-368). 0: as long as it is connected, or "
        "as its token is valid.",
        type=OptionType.LONG,
    )
    connection_failed_authentication_delay_ms: int = option(
        "connection.failed.authentication.delay.ms",
        100,
        at_least(0),
        "How long a client waits for the response to a failed authentication.",
    )
    max_connections_per_ip: int = option(
        "max.connections.per.ip", NO_LIMIT, at_least(0), "The most connections from one address."
    )
    max_connections_per_ip_overrides: tuple[str, ...] = option(
        "max.connections.per.ip.overrides",
        (),
        _are_limits,
        "max.connections.per.ip for some addresses: a list of ADDRESS:NUMBER, for example 10.0.0.7:200.",
    )
    max_connections_per_principal: int = option(
        "skep.max.connections.per.principal",
        5_000,
        at_least(1),
        "The most connections of one principal, where clients authenticate. Brokers among themselves count too.",
    )
    max_connection_creation_rate: int = option(
        "max.connection.creation.rate",
        NO_LIMIT,
        at_least(1),
        "The most new connections in a second, over all addresses. Further ones wait for their turn, or are closed "
        "if that is more than a second away. A listener may have its own rate besides that of the broker.",
    )
    quota_window_num: int = option(
        "quota.window.num",
        11,
        at_least(2),
        "With quota.window.size.seconds, the time over which clients keep to their quotas: all samples but the current "
        "one. A twentieth of it may be used at once.",
        dynamic=False,
    )
    quota_window_size_seconds: int = option(
        "quota.window.size.seconds", 1, at_least(1), "The seconds of a sample of quota.window.num.", dynamic=False
    )
    controller_quota_window_num: int = option(
        "controller.quota.window.num",
        11,
        at_least(1),
        "With controller.quota.window.size.seconds, the time whose quota of controller mutations may be used at once.",
        dynamic=False,
    )
    controller_quota_window_size_seconds: int = option(
        "controller.quota.window.size.seconds",
        1,
        at_least(1),
        "The seconds of a sample of controller.quota.window.num.",
        dynamic=False,
    )
    max_unauthenticated_connections: int = option(
        "skep.max.unauthenticated.connections",
        500,
        at_least(1),
        "The most connections that have not finished their TLS handshake or have not authenticated yet. Further ones "
        "are closed at once.",
    )
    handshake_timeout_ms: int = option(
        "skep.handshake.timeout.ms",
        10_000,
        at_least(100),
        "How long a connection may take for its TLS handshake, and then for its authentication.",
    )
    ssl_keystore_type: str = option(
        "ssl.keystore.type", "PEM", _is_pem, "The form of the key and certificate.", dynamic=False
    )
    ssl_keystore_location: str = option(
        "ssl.keystore.location",
        "",
        anything,
        "File with the broker's private key and its certificate chain, in PEM form. It is read again when it changes.",
        dynamic=False,
    )
    ssl_keystore_key: str = option(
        "ssl.keystore.key",
        "",
        anything,
        "The private key itself, in PEM form (PKCS#8), if it is not in a file.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    ssl_keystore_certificate_chain: str = option(
        "ssl.keystore.certificate.chain",
        "",
        anything,
        "The certificate chain itself, in PEM form, beginning with the broker's certificate.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    ssl_keystore_password: str = option(
        "ssl.keystore.password",
        "",
        _has_no_password,
        "For JKS and PKCS12 files, which are not supported.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    ssl_key_password: str = option(
        "ssl.key.password",
        "",
        anything,
        "The password of an encrypted private key.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    ssl_truststore_type: str = option(
        "ssl.truststore.type", "PEM", _is_pem, "The form of the CA certificates.", dynamic=False
    )
    ssl_truststore_location: str = option(
        "ssl.truststore.location",
        "",
        anything,
        "File with the certificates of the CAs that clients and other brokers are checked by, in PEM form. It is read "
        "again when it changes.",
        dynamic=False,
    )
    ssl_truststore_certificates: str = option(
        "ssl.truststore.certificates",
        "",
        anything,
        "The certificates of the CAs themselves, in PEM form, if they are not in a file.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    ssl_truststore_password: str = option(
        "ssl.truststore.password",
        "",
        _has_no_password,
        "For JKS and PKCS12 files, which are not supported.",
        type=OptionType.PASSWORD,
        dynamic=False,
    )
    ssl_client_auth: str = option(
        "ssl.client.auth",
        "none",
        one_of("none", "requested", "required"),
        "Whether clients show a certificate: none, requested, required.",
        dynamic=False,
    )
    ssl_enabled_protocols: tuple[str, ...] = option(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        each_of("TLSv1.2", "TLSv1.3"),
        "The versions of TLS that are accepted: TLSv1.2, TLSv1.3.",
    )
    ssl_protocol: str = option(
        "ssl.protocol",
        "TLSv1.3",
        one_of("TLS", "TLSv1.2", "TLSv1.3"),
        "Accepted for the sake of Kafka's files: ssl.enabled.protocols decides.",
        dynamic=False,
    )
    ssl_cipher_suites: tuple[str, ...] = option(
        "ssl.cipher.suites",
        (),
        anything,
        "The cipher suites of TLS 1.2, by OpenSSL's or Java's names. Empty: those of OpenSSL.",
    )
    ssl_principal_mapping_rules: str = option(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        anything,
        "How the name in a client's certificate becomes its principal: a list of RULE:PATTERN/REPLACEMENT/[LU] and "
        "DEFAULT, the name itself. The first rule that matches counts.",
        dynamic=False,
    )
    ssl_endpoint_identification_algorithm: str = option(
        "ssl.endpoint.identification.algorithm",
        "https",
        one_of("https", ""),
        "How brokers check the names of other brokers: https, by the host name in the certificate. Empty: not at all.",
    )
    authorizer_class_name: str = option(
        "authorizer.class.name",
        "",
        one_of("", *AUTHORIZERS),
        "Whether requests are checked against ACLs: " + AUTHORIZERS[0] + ". Empty: everybody may do everything.",
        dynamic=False,
    )
    super_users: str = option(
        "super.users",
        "",
        anything,
        "Principals that may do everything, whatever the ACLs say, with semicolons between: User:admin;User:broker.",
        dynamic=False,
    )
    allow_everyone_if_no_acl_found: bool = option(
        "allow.everyone.if.no.acl.found",
        False,
        anything,
        "Whether everybody may use what no ACL matches.",
        dynamic=False,
    )
    authorizer_mode: str = option(
        "skep.authorizer.mode",
        "enforce",
        one_of("enforce", "log"),
        "enforce: what is not allowed is refused. log: nothing is refused, and what would be is logged, in the audit "
        "log if there is one.",
        dynamic=False,
    )
    max_acls: int = option(
        "skep.max.acls", 20_000, at_least(0), "The most ACLs of the cluster. Further ones are refused."
    )
    max_acls_per_resource: int = option(
        "skep.max.acls.per.resource",
        1_000,
        at_least(1),
        "The most ACLs of one resource pattern, which are stored together. Further ones are refused.",
    )
    audit_log: str = option(
        "skep.audit.log",
        "",
        anything,
        "File to which refused operations, allowed ones of skep.audit.operations, and changes of configs, ACLs, users "
        "and quotas are appended, as JSON lines. Empty: none.",
        dynamic=False,
    )
    audit_operations: tuple[str, ...] = option(
        "skep.audit.operations",
        ("create", "delete", "alter", "alter_configs"),
        some_of(*_OPERATIONS),
        "The operations of which the audit log also has those that were allowed.",
        dynamic=False,
    )
    audit_refusals_per_second: int = option(
        "skep.audit.refusals.per.second",
        10,
        at_least(1),
        "How many refusals of one connection the audit log takes in a second; it counts the others.",
        dynamic=False,
    )


def connection_limits(overrides: Iterable[str]) -> dict[str, int]:
    """Returns ``max.connections.per.ip.overrides`` by address."""
    pairs = (pair.rpartition(":") for pair in overrides)
    return {host.removeprefix("[").removesuffix("]"): int(number) for host, _, number in pairs}


SECURITY_OPTIONS: Mapping[str, Option] = declared(SecurityConfig)

_LISTENER_WIDE = frozenset(
    name
    for name in SECURITY_OPTIONS
    if name.startswith(("sasl.", "ssl.", "connections.", "connection.", "max.connection."))
    and not name.endswith("inter.broker.protocol")
)
"""The options that a listener may have for itself."""
_MECHANISMS = "|".join(re.escape(name.lower()) for name in MECHANISMS)
_OF_LISTENER = re.compile(rf"listener\.name\.(?P<listener>[^.]+)\.((?P<mechanism>{_MECHANISMS})\.)?(?P<option>.+)")


def option_of_listener(name: str) -> Option | None:
    """Returns the option that ``listener.name.<listener>.[<mechanism>.]<option>`` sets, under this name.

    None for a name without the prefix. Raises OptionError if there is no such option of listeners.
    """
    if not name.startswith(LISTENER_PREFIX):
        return None
    found = _OF_LISTENER.fullmatch(name)
    if found is None or found["option"] not in _LISTENER_WIDE:
        shown = found["option"] if found else name
        raise OptionError(f"{name}: listeners have no such option of their own{meant(shown, _LISTENER_WIDE)}")
    return replace(SECURITY_OPTIONS[found["option"]], name=name)


def security_of_listener(
    config: SecurityConfig, overrides: Mapping[str, str], listener: str, mechanism: str | None = None
) -> SecurityConfig:
    """Returns the options as they apply to a listener, and to one SASL mechanism of it if that is given.

    ``overrides`` are the options with the prefix of a listener, by their full names.
    """
    prefix = f"{LISTENER_PREFIX}{listener.lower()}."
    prefixes = [prefix] if mechanism is None else [prefix, f"{prefix}{mechanism.lower()}."]
    texts: dict[str, str] = {}
    for one in prefixes:
        texts.update(
            (name.removeprefix(one), text)
            for name, text in overrides.items()
            if name.startswith(one) and name.removeprefix(one) in _LISTENER_WIDE
        )
    return parse_into(config, texts)
