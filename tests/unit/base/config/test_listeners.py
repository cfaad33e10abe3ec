"""Listeners out of options: their names, protocols and addresses, and what a broker refuses to start with."""

import pytest

from skep.base.config.broker_config import read_broker_config
from skep.base.config.listeners import Listeners, read_listeners
from skep.base.errors import OptionError

MAP = "listener.security.protocol.map"


def listeners(listeners: str, **more: str) -> Listeners:
    texts = {name.replace("_", "."): text for name, text in more.items()}
    return read_listeners(read_broker_config({"listeners": listeners, **texts}))


def refusal(given: str, **more: str) -> str:
    with pytest.raises(OptionError) as raised:
        listeners(given, **more)
    return str(raised.value)


def test_an_address_without_a_name_is_plaintext():
    [one] = listeners("127.0.0.1:9092").all
    assert (one.name, one.protocol, one.host, one.port) == ("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)
    assert (one.is_local, one.authenticates) == (True, False)


def test_names_have_protocols_by_the_map_and_options_of_their_own():
    found = listeners(
        "inside://127.0.0.1:1,Outside://[::]:2",
        listener_security_protocol_map="INSIDE:SSL,OUTSIDE:SASL_SSL",
        inter_broker_listener_name="inside",
        listener_name_inside_ssl_client_auth="required",
    )
    inside, outside = found.all
    assert (inside.name, inside.protocol, inside.authenticates) == ("INSIDE", "SSL", True)
    assert (outside.protocol, outside.host, outside.uses_sasl, outside.uses_tls) == ("SASL_SSL", "::", True, True)
    assert outside.security.ssl_client_auth == "none"
    assert found.inter_broker is inside


def test_brokers_use_the_only_listener_or_the_one_with_the_protocol():
    assert listeners("SASL_SSL://h:1").inter_broker.name == "SASL_SSL"
    both = "PLAINTEXT://localhost:1,SASL_SSL://h:2"
    assert listeners(both).inter_broker.name == "PLAINTEXT"
    assert listeners(both, security_inter_broker_protocol="SASL_SSL").inter_broker.name == "SASL_SSL"


def test_advertised_addresses_are_found_by_name():
    found = listeners("PLAINTEXT://localhost:1,SSL://localhost:2", advertised_listeners="SSL://ssl.example:3")
    assert [one.advertised for one in found.all] == [None, ("ssl.example", 3)]
    assert listeners("SSL://localhost:2", advertised_listeners="h:3").all[0].advertised == ("h", 3)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "broker.example.org"])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_listener_that_asks_nobody_is_not_open_to_other_machines(host, protocol):
    shown = f"[{host}]" if ":" in host else host
    text = refusal(f"{protocol}://{shown}:9092")
    assert f"{protocol} on {shown}:9092 would let everybody who reaches it" in text
    assert "\n" not in text
    assert listeners(f"{protocol}://{shown}:9092", skep_insecure="true").all[0].host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_this_machine_may_do_without_authentication(host):
    assert listeners(f"{host}:9092").all[0].is_local


def test_authentication_opens_a_listener():
    assert not listeners("SASL_PLAINTEXT://0.0.0.0:1").all[0].is_local
    assert listeners("SSL://0.0.0.0:1", ssl_client_auth="required").all[0].authenticates
    assert "would let everybody" in refusal("SSL://0.0.0.0:1", ssl_client_auth="requested")


@pytest.mark.parametrize(
    ("given", "more", "says"),
    [
        ("a:1,b:2", {}, "the name PLAINTEXT is given twice"),
        ("PLAINTEXT://a:1,SSL://a:1", {}, "port 1 is given twice"),
        ("INSIDE://localhost:1", {}, "listener.security.protocol.map has no protocol for INSIDE"),
        ("localhost:1", {"listener_security_protocol_map": "PLAINTEXT:TLS"}, "expected NAME:PROTOCOL"),
        ("localhost:1", {"inter_broker_listener_name": "INSIDE"}, "there is no such listener"),
        ("SSL://localhost:1,SASL_SSL://localhost:2", {}, "no listeners have it; choose one of SSL, SASL_SSL"),
        ("localhost:1", {"advertised_listeners": "SSL://h:1"}, "there is no listener SSL"),
        ("localhost:1", {"advertised_listeners": "0.0.0.0:1"}, "nobody can connect to 0.0.0.0"),
        ("localhost:1", {"listener_name_inside_ssl_client_auth": "none"}, "there is no listener inside"),
        ("localhost", {}, "expected host:port"),
        ("localhost:99999", {}, "expected host:port"),
        ("a:1,", {}, "expected host:port"),
        ("localhost:1", {"max_connections_per_ip_overrides": "10.0.0.1"}, "must be a list of ADDRESS:NUMBER"),
    ],
)
def test_what_cannot_be_is_refused(given, more, says):
    assert says in refusal(given, **more)
