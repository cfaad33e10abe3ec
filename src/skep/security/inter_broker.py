"""How brokers prove themselves to each other: the client settings that follow from a broker's options.

They are those of the listener that brokers use among themselves: its protocol, its trusted CAs and its certificate, and
the user of ``listener.name.<name>.<mechanism>.sasl.jaas.config``. The worker process is a client of the cluster with
the same settings.
"""

import logging
import ssl
from collections.abc import Mapping

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.listeners import ListenerOptions
from skep.base.config.security_config import security_of_listener
from skep.base.errors import OptionError, StartupError
from skep.client.errors import BadSetting
from skep.client.security.client_properties import librdkafka_properties
from skep.client.security.client_security import ClientSecurity
from skep.client.security.tls_context import client_context
from skep.security.operations import CLUSTER_NAME, Operation, ResourceType
from skep.security.principal import ANONYMOUS, Principal
from skep.security.security import Security
from skep.security.tls.distinguished_name import subject_of
from skep.security.tls.mapping_rules import MappingRules
from skep.security.tls.server_context import certificate_chain, first_certificate

logger = logging.getLogger(__name__)

_SHARED = (
    "ssl.keystore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
)


def inter_broker_properties(config: BrokerConfig, listener: ListenerOptions) -> dict[str, str]:
    """Returns the settings under the names of librdkafka; none if the listener is PLAINTEXT. Raises OptionError.

    A single broker has nobody to talk to, and may do without a user of its own.
    """
    if not listener.uses_sasl and not listener.uses_tls:
        return {}
    texts = {"security.protocol": listener.protocol}
    mechanism = config.security.sasl_mechanism_inter_broker_protocol
    if listener.uses_sasl:
        of_mechanism = security_of_listener(config.security, config.of_listeners, listener.name, mechanism)
        if not of_mechanism.sasl_jaas_config:
            if not config.cluster.metadata:
                return {}
            raise OptionError(
                f"listener.name.{listener.name.lower()}.{mechanism.lower()}.sasl.jaas.config is needed: the user and "
                f"password by which this broker logs in to others (sasl.mechanism.inter.broker.protocol={mechanism})"
            )
        texts |= {"sasl.mechanism": mechanism, "sasl.jaas.config": of_mechanism.sasl_jaas_config}
    if listener.uses_tls:
        own = listener.security
        texts |= {name: text for name in _SHARED if (text := getattr(own, name.replace(".", "_")))}
        texts["ssl.endpoint.identification.algorithm"] = own.ssl_endpoint_identification_algorithm
    try:
        return librdkafka_properties(texts)
    except BadSetting as error:
        raise OptionError(f"listener {listener.name}, which brokers use among themselves: {error}") from None


def worker_properties(config: BrokerConfig, listener: ListenerOptions, properties: dict[str, str]) -> dict[str, str]:
    """Returns the settings for the worker process. Logs an error if a single broker has none and its listener wants a
    login: the worker is started when dead letters are to be written or held records released, and it cannot connect."""
    if listener.uses_sasl and not properties:
        mechanism = config.security.sasl_mechanism_inter_broker_protocol
        logger.error(
            "dead letters and held records wait: the broker's worker has no login; set "
            "listener.name.%s.%s.sasl.jaas.config and start the broker again",
            listener.name.lower(),
            mechanism.lower(),
        )
    return properties


def check_own_rights(
    config: BrokerConfig, listener: ListenerOptions, properties: Mapping[str, str], security: Security
) -> None:
    """Raises StartupError if other brokers would refuse this one. A single broker talks to nobody."""
    if security.authorizer is None or not config.cluster.metadata:
        return
    principal = _own_principal(listener, properties)
    access = security.access(principal, "127.0.0.1", listener.name)
    if not access.allows(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        raise StartupError(
            f"brokers are {principal} to each other, on listener {listener.name}, and may do nothing there: add "
            f"{principal} to super.users, or allow it CLUSTER_ACTION on the cluster"
        )


def _own_principal(listener: ListenerOptions, properties: Mapping[str, str]) -> Principal:
    if listener.uses_sasl:
        return Principal(properties.get("sasl.username") or properties.get("sasl.oauthbearer.client.id", ""))
    if not listener.uses_tls or listener.security.ssl_client_auth == "none":
        return ANONYMOUS
    certificate = ssl.PEM_cert_to_DER_cert(first_certificate(certificate_chain(listener.security)))
    return MappingRules(listener.security.ssl_principal_mapping_rules).principal(subject_of(certificate))


def renew_certificate(security: ClientSecurity, properties: Mapping[str, str]) -> None:
    """Reads the files again, for the connections to other brokers that are made from now on."""
    if security.tls_context is None:
        return
    try:
        # A new context: a CA cannot be taken out of one.
        security.tls_context = client_context(properties)
    except BadSetting as error:
        logger.error("the certificate for other brokers stays as it is: %s", error)


def inter_broker_security(properties: dict[str, str], listener: ListenerOptions) -> ClientSecurity:
    """Raises OptionError."""
    try:
        return ClientSecurity(properties)
    except BadSetting as error:
        raise OptionError(f"listener {listener.name}, which brokers use among themselves: {error}") from None
