"""The section ``security`` of the broker options, and the options that one listener has for itself."""

import pytest

from skep.base.config.broker_config import read_broker_config
from skep.base.config.security_config import SecurityConfig, option_of_listener, security_of_listener
from skep.base.errors import OptionError


def of_listener(texts: dict[str, str], listener: str, mechanism: str | None = None) -> SecurityConfig:
    config = read_broker_config(texts)
    return security_of_listener(config.security, config.of_listeners, listener, mechanism)


def test_a_listener_has_the_brokers_options_unless_it_has_its_own():
    texts = {"ssl.client.auth": "requested", "listener.name.inside.ssl.client.auth": "required"}
    assert of_listener(texts, "INSIDE").ssl_client_auth == "required"
    assert of_listener(texts, "OUTSIDE").ssl_client_auth == "requested"


def test_the_longest_prefix_wins():
    texts = {
        "sasl.jaas.config": "a",
        "listener.name.inside.sasl.jaas.config": "b",
        "listener.name.inside.scram-sha-256.sasl.jaas.config": "c",
    }
    assert of_listener(texts, "INSIDE", "SCRAM-SHA-256").sasl_jaas_config == "c"
    assert of_listener(texts, "INSIDE", "PLAIN").sasl_jaas_config == "b"
    assert of_listener(texts, "INSIDE").sasl_jaas_config == "b"
    assert of_listener(texts, "OUTSIDE", "SCRAM-SHA-256").sasl_jaas_config == "a"


@pytest.mark.parametrize(
    "name",
    ["listener.name.inside.num.partitions", "listener.name.ssl.client.auth", "listener.name.inside.super.users"],
)
def test_an_option_that_listeners_do_not_have_is_refused(name):
    with pytest.raises(OptionError, match=f"^{name}: listeners have no such option"):
        read_broker_config({name: "1"})


def test_a_bad_value_for_a_listener_is_refused_when_it_is_read():
    with pytest.raises(OptionError, match=r"listener\.name\.inside\.ssl\.client\.auth=no: must be one of"):
        read_broker_config({"listener.name.inside.ssl.client.auth": "no"})


def test_other_forms_than_pem_are_refused_with_the_command_that_converts_them():
    for name, value in (
        ("ssl.keystore.type", "JKS"),
        ("ssl.truststore.type", "PKCS12"),
        ("ssl.keystore.password", "x"),
    ):
        with pytest.raises(OptionError, match="openssl pkcs12 -in"):
            read_broker_config({name: value})


def test_a_password_is_not_in_the_message_about_it():
    with pytest.raises(OptionError) as raised:
        read_broker_config({"ssl.truststore.password": "wonderland"})
    assert "wonderland" not in str(raised.value)


def test_a_name_without_the_prefix_is_no_option_of_a_listener():
    assert option_of_listener("num.partitions") is None
