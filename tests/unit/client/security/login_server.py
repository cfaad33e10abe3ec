"""A server that speaks just enough for a login: TLS, ApiVersions, PLAIN or SCRAM, and empty Metadata."""

import base64
import os
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import trustme
from kio.serial import entity_reader

from skep.wire.apis import API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from skep.wire.codec import request_class, response_class
from skep.wire.entities.encoders import entity_encoder
from skep.wire.sasl import scram_keys

USER, PASSWORD = "alice", "s3cr3t-of-alice"
APIS = {api.key: api for api in (API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE)}


class LoginServer:
    """Listens while it is entered. ``seen`` has the name of each request, of all connections."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, mechanism: str = "PLAIN", lifetime_ms: int = 0) -> None:
        self._tls, self._mechanism, self._lifetime_ms = tls, mechanism, lifetime_ms
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen: list[str] = []
        self.connections = 0
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        try:
            with accepted if self._tls is None else self._tls.wrap_socket(accepted, server_side=True) as connection:
                login = _Login(self._mechanism)
                while True:
                    (length,) = struct.unpack(">i", _read(connection, 4))
                    if length > 1 << 20:
                        return
                    self._respond(connection, _read(connection, length), login)
        except OSError:
            accepted.close()

    def _respond(self, connection: socket.socket, frame: bytes, login: "_Login") -> None:
        key, version, correlation_id, name_length = struct.unpack_from(">hhih", frame)
        api = APIS[key]
        self.seen.append(api.name)
        start = 10 + name_length + (1 if api.is_flexible(version) else 0)
        request, _ = entity_reader(request_class(key, version))(memoryview(frame), start)
        body = self._body(api, request, login)
        tags = b"\0" if api.is_flexible(version) and api is not API_VERSIONS else b""
        response = struct.pack(">i", correlation_id) + tags + entity_encoder(response_class(key, version))(body)
        connection.sendall(struct.pack(">i", len(response)) + response)

    def _body(self, api: Api, request: Any, login: "_Login") -> Mapping[str, Any]:
        if api is API_VERSIONS:
            return {
                "api_keys": [
                    {"api_key": a.key, "min_version": a.oldest, "max_version": a.newest} for a in APIS.values()
                ]
            }
        if api is SASL_HANDSHAKE:
            known = request.mechanism == self._mechanism
            login.begin()
            return {"error_code": 0 if known else 33, "mechanisms": [self._mechanism]}
        if api is SASL_AUTHENTICATE:
            reply = login.step(request.auth_bytes)
            if reply is None:
                return {"error_code": 58, "error_message": "Authentication failed", "auth_bytes": b""}
            return {"auth_bytes": reply, "session_lifetime": timedelta(milliseconds=self._lifetime_ms)}
        return {"brokers": [], "topics": [], "cluster_id": "of-the-login-server"}


class _Login:
    """One login: PLAIN, or SCRAM-SHA-256 with 4096 iterations."""

    def __init__(self, mechanism: str) -> None:
        self._mechanism = mechanism

    def begin(self) -> None:
        self._first = b""

    def step(self, token: bytes) -> bytes | None:
        if self._mechanism == "PLAIN":
            return b"" if token == f"\0{USER}\0{PASSWORD}".encode() else None
        scram = scram_keys.SCRAM_SHA_256
        if not self._first:
            self._first = token[3:]
            nonce = token.split(b"r=")[1] + b"of-the-server"
            self._salt = os.urandom(16)
            self._challenge = b"r=%s,s=%s,i=4096" % (nonce, base64.b64encode(self._salt))
            return self._challenge
        without_proof, _, proof = token.partition(b",p=")
        salted = scram_keys.salted_password(scram, PASSWORD, self._salt, 4096)
        signed = b",".join((self._first, self._challenge, without_proof))
        keys = scram_keys.keys_of(scram, salted)
        if not scram_keys.proves(scram, keys, signed, base64.b64decode(proof)):
            return None
        return b"v=" + base64.b64encode(scram_keys.server_signature(scram, keys.server_key, signed))


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data


def server_tls(authority: trustme.CA, *names: str, client_ca: trustme.CA | None = None) -> ssl.SSLContext:
    """Returns the context of a server with a certificate for these names; it wants one of the client if told so."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("127.0.0.1",))).configure_cert(context)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        client_ca.configure_trust(context)
    return context
