"""Tokens for OAUTHBEARER: who is asked, how long a token is kept, and what is refused."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from skep.client.errors import BadSetting, SecurityFailure, Unreachable
from skep.client.security.client_security import ClientSecurity
from skep.client.security.oauth_tokens import ENDPOINT, ID, SCOPE, SECRET, TokenSource

CLIENT = {ID: "a client", SECRET: "s3cr3t/"}


class Endpoint(HTTPServer):
    """Gives out numbered tokens, or what it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str]] = []
        self.code = 200
        self.body: Any = {"expires_in": 3600}

    @property
    def settings(self) -> dict[str, str]:
        return {**CLIENT, ENDPOINT: f"http://127.0.0.1:{self.server_port}/token"}


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.headers["Authorization"], form))
        self.send_response(self.server.code)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        body = self.server.body
        if isinstance(body, dict) and "access_token" not in body:
            body = {"access_token": f"token-{len(self.server.asked)}", **body}
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def test_a_token_is_asked_for_by_the_clients_credentials_and_kept(endpoint: Endpoint) -> None:
    source = TokenSource({**endpoint.settings, SCOPE: "kafka"})
    assert [source.token().reveal() for _ in range(3)] == ["token-1"] * 3
    [(authorization, form)] = endpoint.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"a+client:s3cr3t%2F"
    assert form == "grant_type=client_credentials&scope=kafka"


@pytest.mark.parametrize("claims", [{"exp": 1}, {}], ids=["expired", "no expiry"])
def test_a_token_without_a_life_is_asked_for_each_time(endpoint: Endpoint, claims: dict[str, Any]) -> None:
    jwt = ".".join(("", base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("="), ""))
    endpoint.body = {"access_token": jwt}
    source = TokenSource(endpoint.settings)
    assert {source.token().reveal(), source.token().reveal()} == {jwt}
    assert len(endpoint.asked) == 2
    endpoint.body = {"access_token": jwt, "expires_in": 60}
    source.token()
    source.token()
    assert len(endpoint.asked) == 3


@pytest.mark.parametrize("code", [401, 302])
def test_a_refusal_and_a_redirect_are_errors_without_the_secret(endpoint: Endpoint, code: int) -> None:
    endpoint.code = code
    with pytest.raises(SecurityFailure, match=rf"gives no token to the client 'a client' \(HTTP {code}\)") as refused:
        TokenSource(endpoint.settings).token()
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("body", [{"access_token": None, "expires_in": "x"}, [], "text"])
def test_what_is_no_token_is_an_error(endpoint: Endpoint, body: Any) -> None:
    endpoint.body = body
    with pytest.raises(SecurityFailure, match="sent no access_token"):
        TokenSource(endpoint.settings).token()


def test_an_endpoint_that_is_down_may_be_tried_again() -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        TokenSource({**CLIENT, ENDPOINT: "http://127.0.0.1:1/token"}).token()


def test_a_token_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", ENDPOINT: f"file://{tmp_path}/token"}
    login = ClientSecurity.of(settings).login("h:1")
    assert login is not None
    assert TokenSource(settings).token().reveal() == "abc"
    (tmp_path / "token").unlink()
    with pytest.raises(SecurityFailure, match="No such file"):
        TokenSource(settings).token()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "needs sasl.oauthbearer.token.endpoint.url"),
        ({**CLIENT, ENDPOINT: "http://example.com/token"}, "expected https:// or file://"),
        ({ENDPOINT: "https://example.com/token"}, "needs sasl.oauthbearer.client.id"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        TokenSource(settings)
