"""OAUTHBEARER: which tokens are accepted, and where their keys come from."""

import asyncio
import base64
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from skep.base.config.option import parse_into
from skep.base.config.security_config import SecurityConfig
from skep.base.errors import OptionError
from skep.base.secret import Secret
from skep.metadata.cluster_image import ClusterImage
from skep.security.authenticator import Authenticator
from skep.security.principal import Principal
from skep.security.sasl.jwks import Jwks, check_url, fetch_keys
from skep.security.sasl.mechanism import Authenticated, AuthenticationFailed
from skep.security.sasl.mechanisms import check_plain
from skep.security.sasl.oauth_bearer_mechanism import OAuthBearerMechanism
from skep.security.sasl.token_validator import TokenRefused, TokenValidator
from skep.wire.sasl.oauth_bearer import OAuthBearerClient
from tests.manual_clock import ManualClock

RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"})
PUBLIC = KeySet.import_key_set({"keys": [RSA.as_dict(private=False), EC.as_dict(private=False)]})
NOW_S = 1_700_000_000


class Keys:
    def __init__(self, keys=PUBLIC):
        self.keys, self.missing = keys, 0

    def key_is_missing(self):
        self.missing += 1


def validator(keys=None, **changes):
    settings = {"issuer": "https://idp", "audiences": ["skep", "kafka"]} | changes
    return TokenValidator(keys or Keys(), ManualClock(NOW_S * 1000), **settings)


def claims(**changes):
    good = {"sub": "alice", "iss": "https://idp", "aud": "skep", "iat": NOW_S, "exp": NOW_S + 300}
    return {name: value for name, value in (good | changes).items() if value is not None}


def token(body=None, key=RSA, alg="RS256", **header):
    return Secret(jwt.encode({"alg": alg, "kid": key.kid} | header, body or claims(), key, algorithms=[alg]))


def test_a_good_token_says_who_and_until_when():
    assert validator().validate(token()) == ("alice", (NOW_S + 300) * 1000)
    assert validator().validate(token(key=EC, alg="ES256")).subject == "alice"
    assert validator().validate(token(claims(aud=["other", "kafka"]))).subject == "alice"
    assert validator(subject_claim="name").validate(token(claims(name="bob"))).subject == "bob"
    assert validator().validate(token(claims(exp=NOW_S - 29, iat=NOW_S + 29, nbf=NOW_S + 29))).subject == "alice"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": None}, "exp is missing"),
        ({"exp": "soon"}, "exp is missing or is no time"),
        ({"exp": True}, "exp is missing or is no time"),
        ({"exp": 1e300}, "exp is no time"),
        ({"exp": -1}, "exp is no time"),
        ({"exp": NOW_S * 100}, "too far"),
        ({"iat": None}, "iat is missing"),
        ({"iat": NOW_S + 31}, "iat is in the future"),
        ({"nbf": NOW_S + 31}, "nbf is in the future"),
        ({"nbf": "x"}, "nbf is missing or is no time"),
        ({"iss": "https://other"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"iss": ["https://idp"]}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": [["skep"], 3]}, "audience"),
        ({"aud": {"skep": 1}}, "audience"),
        ({"sub": None}, "sub is missing"),
        ({"sub": " "}, "sub is missing"),
        ({"sub": 7}, "sub is missing"),
        ({"sub": "a" * 256}, "too long"),
        ({"sub": "a\nb"}, "printable"),
    ],
)
def test_a_claim_that_is_wrong_is_refused(changes, what):
    with pytest.raises(TokenRefused, match=what):
        validator().validate(token(claims(**changes)))


def unsigned():
    return Secret("eyJhbGciOiJub25lIiwia2lkIjoicnNhIn0." + token().reveal().split(".")[1] + ".")


def with_header(**header):
    """Signed by hand: joserfc makes no such token."""
    encoded = base64.urlsafe_b64encode(json.dumps({"kid": "rsa", **header}).encode()).rstrip(b"=")
    signed = encoded + b"." + token().reveal().split(".")[1].encode()
    return signed, base64.urlsafe_b64encode(hmac.digest(RSA.as_pem(private=False), signed, "sha256")).rstrip(b"=")


def with_public_key_as_secret():
    """The old attack on libraries that take the algorithm from the token: HS256 with the public key."""
    return Secret(b".".join(with_header(alg="HS256")).decode())


@pytest.mark.parametrize(
    "forged",
    [
        lambda: token(key=STRANGER),
        unsigned,
        with_public_key_as_secret,
        lambda: Secret(b".".join(with_header(alg="RS256", crit=["exp"])).decode()),
        lambda: Secret(token().reveal()[:-8] + "AAAAAAAA"),
        lambda: Secret(token(claims(sub="admin")).reveal().rpartition(".")[0] + "." + token().reveal().split(".")[2]),
        lambda: Secret("a.b.c"),
        lambda: Secret(""),
        lambda: Secret("." * 1000),
        lambda: Secret("e30.e30.e30"),
        lambda: Secret(jws.serialize_compact({"alg": "RS256", "kid": "rsa"}, b"[1]", RSA, algorithms=["RS256"])),
        lambda: Secret(jws.serialize_compact({"alg": "RS256", "kid": "rsa"}, b"[" * 9999, RSA, algorithms=["RS256"])),
    ],
)
def test_a_forged_token_is_refused(forged):
    one = forged()
    with pytest.raises(TokenRefused) as caught:
        validator().validate(one)
    assert caught.value.__cause__ is None
    assert not one or one.reveal() not in str(caught.value)


def test_without_keys_every_token_is_refused():
    """CVE-2026-110985: a check of the signature that has nothing to check with must not be skipped."""
    keys = Keys()
    keys.keys = None
    with pytest.raises(TokenRefused, match="not been fetched"):
        validator(keys).validate(token())


def test_an_unknown_key_asks_for_newer_keys():
    keys = Keys(KeySet.import_key_set({"keys": [EC.as_dict(private=False)]}))
    with pytest.raises(TokenRefused, match="no known key"):
        validator(keys).validate(token(kid="new"))
    assert keys.missing == 1


def login(mechanism, client):
    result = mechanism.step(client.first())
    while isinstance(result, bytes):
        result = mechanism.step(client.next(result))
    return result


def test_a_login_lasts_as_long_as_the_token():
    result = login(OAuthBearerMechanism(validator()), OAuthBearerClient(token(), {"traceId": "7"}))
    assert result == Authenticated(Principal("alice"), b"", (NOW_S + 300) * 1000)


def test_a_refused_token_gets_the_json_of_the_rfc_and_then_fails():
    mechanism, client = OAuthBearerMechanism(validator()), OAuthBearerClient(token(claims(aud="other")))
    challenge = mechanism.step(client.first())
    assert challenge == b'{"status":"invalid_token"}'
    for _ in range(2):
        with pytest.raises(AuthenticationFailed, match="invalid credentials"):
            mechanism.step(b"\x01")


def test_a_token_lets_nobody_act_as_another():
    good = token().reveal().encode()
    with pytest.raises(AuthenticationFailed):
        OAuthBearerMechanism(validator()).step(b"n,a=admin,\x01auth=Bearer " + good + b"\x01\x01")
    result = OAuthBearerMechanism(validator()).step(b"n,a=alice,\x01auth=Bearer " + good + b"\x01\x01")
    assert isinstance(result, Authenticated)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://idp/keys", "ftp://idp/keys", "https://", "keys", "http://127.0.0.1.evil/"]
)
def test_keys_come_from_https_only(url):
    """CVE-2025-27817."""
    with pytest.raises(OptionError, match="expected an https address"):
        check_url(url)


def test_keys_may_come_from_this_machine_without_https():
    check_url("https://idp.example/keys")
    check_url("http://127.0.0.1:8080/keys")
    check_url("http://[::1]:8080/keys")


@pytest.fixture
def endpoint():
    """Serves ``content`` at /keys, and redirects elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        content = json.dumps(PUBLIC.as_dict(private=False)).encode()

        def do_GET(self):
            self.send_response(200 if self.path == "/keys" else 302)
            self.send_header("Location", "/keys")
            self.end_headers()
            self.wfile.write(self.content)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Handler, f"http://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    server.server_close()
    thread.join()


def test_keys_are_fetched_and_shared_ones_left_out(endpoint):
    handler, url = endpoint
    assert {key.kid for key in fetch_keys(url).keys} == {"rsa", "ec"}
    shared = OctKey.generate_key(256, {"kid": "shared"}).as_dict()
    handler.content = json.dumps({"keys": [shared, EC.as_dict(private=False)]}).encode()
    assert {key.kid for key in fetch_keys(url).keys} == {"ec"}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"keys":[]}', b'{"keys":[{"kty":"oct","k":"AA"}]}', b"x" * 2**21]
)
def test_what_is_no_set_of_keys_is_an_error(endpoint, content):
    handler, url = endpoint
    handler.content = content
    with pytest.raises(ValueError):
        fetch_keys(url)


def test_no_redirect_is_followed(endpoint):
    _, url = endpoint
    with pytest.raises(OSError, match="302"):
        fetch_keys(url.replace("/keys", "/elsewhere"))


def test_a_failed_fetch_keeps_the_keys_and_is_repeated_after_longer_and_longer_pauses():
    replies = [PUBLIC, OSError("down"), OSError("down"), ValueError("bad"), PUBLIC]

    def fetch(url):
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    clock = ManualClock()
    jwks = Jwks("https://idp", clock, refresh_ms=60_000, backoff_ms=100, max_backoff_ms=350, fetch=fetch)
    assert jwks.keys is None
    pauses = []
    for _ in range(5):
        asyncio.run(jwks.refresh())
        assert jwks.keys is PUBLIC
        pauses.append(jwks.pause_ms)
    assert pauses == [60_000, 100, 200, 350, 60_000]


def test_unknown_keys_make_few_fetches():
    clock = ManualClock()
    jwks = Jwks("https://idp", clock, refresh_ms=60_000, backoff_ms=1, max_backoff_ms=1, fetch=lambda url: PUBLIC)
    asyncio.run(jwks.refresh())
    jwks.key_is_missing()
    assert not jwks._is_wanted.is_set()
    clock.advance_ms(10_000)
    jwks.key_is_missing()
    assert jwks._is_wanted.is_set()


GOOD = {
    "sasl.oauthbearer.jwks.endpoint.url": "https://idp/keys",
    "sasl.oauthbearer.expected.issuer": "https://idp",
    "sasl.oauthbearer.expected.audience": "skep",
}


def offered(texts, *names):
    options = parse_into(SecurityConfig(), texts)
    authenticator = Authenticator(lambda: ClusterImage.of("c", (), ()), ManualClock())
    try:
        return authenticator.mechanisms("CLIENTS", lambda name: options, names)
    finally:
        authenticator.close()


@pytest.mark.parametrize("missing", GOOD)
def test_a_listener_with_oauthbearer_needs_keys_issuer_and_audience(missing):
    """CVE-2026-110985, and Kafka 4.4: a broker that cannot check tokens does not start."""
    texts = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(OptionError, match=f"listener CLIENTS offers OAUTHBEARER, which needs {missing}"):
        offered(texts, "OAUTHBEARER")
    with pytest.raises(OptionError, match="expected an https address"):
        offered(GOOD | {"sasl.oauthbearer.jwks.endpoint.url": "file:///keys"}, "OAUTHBEARER")


def test_a_listener_offers_what_is_enabled():
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    texts = GOOD | {"sasl.jaas.config": f'{module} required user_alice="x";'}
    found = offered(texts, "OAUTHBEARER", "PLAIN", "SCRAM-SHA-512")
    assert found.names == ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"]
    for name in found.names:
        assert found.begin(name).name == name
    with pytest.raises(OptionError, match="of the listener CLIENTS: the semicolon"):
        offered({"sasl.jaas.config": f"{module} required user_alice=hunter2"}, "PLAIN")


def test_plain_is_refused_where_others_can_read_it():
    check_plain("C", ("PLAIN",), is_private=True)
    check_plain("C", ("SCRAM-SHA-256",), is_private=False)
    with pytest.raises(OptionError, match="listener C would receive passwords unencrypted"):
        check_plain("C", ("SCRAM-SHA-256", "PLAIN"), is_private=False)
