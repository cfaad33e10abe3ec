"""How brokers prove themselves to each other: the client settings that follow from a broker's options.

They are those of the listener that brokers use among themselves: its protocol, its trusted CAs and its certificate, and
the user of ``listener.name.<name>.<mechanism>.sasl.jaas.config``. The worker process is a client of the cluster with
the same settings.
"""

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.listeners import ListenerOptions
from skep.base.config.security_config import security_of_listener
from skep.base.errors import OptionError
from skep.client.errors import BadSetting
from skep.client.security.client_properties import librdkafka_properties
from skep.client.security.client_security import ClientSecurity

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


def inter_broker_security(properties: dict[str, str], listener: ListenerOptions) -> ClientSecurity:
    """Raises OptionError."""
    try:
        return ClientSecurity(properties)
    except BadSetting as error:
        raise OptionError(f"listener {listener.name}, which brokers use among themselves: {error}") from None
