"""What hostile connections send: each function makes the bytes of one kind, and the tables say how often.

A *dialog* is what a connection has said so far, as far as later messages depend on it.
"""

import random
import ssl
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.fuzz import sasl_dialog
from tests.fuzz.mutations import mutated
from tests.fuzz.requests import RequestMaker
from tests.fuzz.sasl_dialog import MECHANISMS, framed

POOL = 600
"""Well-formed requests that are used again and again, each replaced now and then: making one takes longer than to
damage it, and than the broker takes to read it."""
RENEWED_PER_USE = 0.05
BURST = 48
DAMAGED = 0.1
"""Of the frames of a burst."""


@dataclass
class Dialog:
    mechanism: str = "SCRAM-SHA-256"
    bare: str = ""
    challenge: bytes = b""


class Messages:
    """The messages of one run, out of one source of randomness."""

    def __init__(self, source: random.Random, password: str) -> None:
        self.random = source
        self._password = password
        self._requests = RequestMaker(source, ("fuzzed-a", "fuzzed-b", "retention.ms", "segment.bytes", "1", "100"))
        self._pool: list[bytes] = []
        self._hello = client_hello()
        self.frames = 0
        """How many frames were made, damaged ones too. What has no frames (a TLS record) counts as one."""

    def make(self, kind: str, dialog: Dialog) -> bytes:
        maker: Callable[[Dialog], bytes] = getattr(self, "_" + kind)
        self.frames += 1
        return maker(dialog)

    def _frame(self) -> bytes:
        if len(self._pool) < POOL:
            self._pool.append(self._requests.frame(*self._requests.any_api()))
            return self._pool[-1]
        place = self.random.randrange(POOL)
        if self.random.random() < RENEWED_PER_USE:
            self._pool[place] = self._requests.frame(*self._requests.any_api())
        return self._pool[place]

    # Kafka's requests.

    def _good_request(self, dialog: Dialog) -> bytes:
        return framed(self._frame())

    def _mutated_request(self, dialog: Dialog) -> bytes:
        return framed(mutated(self.random, self._frame()))

    def _burst(self, dialog: Dialog) -> bytes:
        count = self.random.randint(2, BURST)
        self.frames += count - 1
        # Few are damaged: at the first that cannot be read the connection ends, and the rest is never looked at.
        return b"".join(framed(self._perhaps_mutated(self._frame())) for _ in range(count))

    def _perhaps_mutated(self, frame: bytes) -> bytes:
        return mutated(self.random, frame) if self.random.random() < DAMAGED else frame

    def _mutated_stream(self, dialog: Dialog) -> bytes:
        count = self.random.randint(1, 5)
        self.frames += count - 1
        return mutated(self.random, b"".join(framed(self._frame()) for _ in range(count)))

    def _random_frame(self, dialog: Dialog) -> bytes:
        return framed(self.random.randbytes(self.random.choice((1, 8, 10, 50, 500))))

    def _random_body(self, dialog: Dialog) -> bytes:
        api, version = self._requests.any_api()
        header = struct.pack(">hhihb", api.key, version, 1, -1, 0)
        return framed(header + self.random.randbytes(self.random.choice((0, 1, 10, 100))))

    def _odd_version(self, dialog: Dialog) -> bytes:
        api, _ = self._requests.any_api()
        return framed(struct.pack(">hhihb", api.key, self.random.choice((-1, 12, 99, 32767)), 1, -1, 0))

    def _random_bytes(self, dialog: Dialog) -> bytes:
        return self.random.randbytes(self.random.choice((1, 4, 100, 10_000)))

    def _half_a_frame(self, dialog: Dialog) -> bytes:
        data = framed(self._frame())
        return data[: self.random.randrange(len(data))]

    def _large_announcement(self, dialog: Dialog) -> bytes:
        length = self.random.choice((2**31 - 1, 100 << 20, (100 << 20) + 1, 1 << 20, 524_289, -1, 0))
        return struct.pack(">i", length) + bytes(self.random.choice((0, 10, 70_000)))

    # SASL.

    def _handshake(self, dialog: Dialog) -> bytes:
        name = self.random.choice((*MECHANISMS, "GSSAPI", "", "x" * 300, "plain", "SCRAM-SHA-256\0"))
        return framed(sasl_dialog.handshake(name, self.random.choice((0, 1, 1, 1, 2))))

    def _mutated_handshake(self, dialog: Dialog) -> bytes:
        return framed(mutated(self.random, sasl_dialog.handshake(self.random.choice(MECHANISMS))))

    def _token(self, dialog: Dialog) -> bytes:
        """A token of this mechanism, damaged inside the request: the frame itself is in order."""
        return framed(sasl_dialog.authenticate(mutated(self.random, self._any_token(dialog)), self._version()))

    def _good_token(self, dialog: Dialog) -> bytes:
        return framed(sasl_dialog.authenticate(self._any_token(dialog), self._version()))

    def _mutated_authenticate(self, dialog: Dialog) -> bytes:
        return framed(mutated(self.random, sasl_dialog.authenticate(self._any_token(dialog), self._version())))

    def _bare_token(self, dialog: Dialog) -> bytes:
        """As SaslHandshake v0 wants it: a token without a header."""
        return framed(self._any_token(dialog))

    def _version(self) -> int:
        return self.random.choice((0, 1, 2))

    def _any_token(self, dialog: Dialog) -> bytes:
        mechanism = dialog.mechanism if self.random.random() < 0.8 else self.random.choice(MECHANISMS)
        user = self.random.choice(("fuzz", "nobody", "", "x" * 5000, "=2C=3D", "ünï", "a,b", "\0"))
        authzid = self.random.choice(("", "", "fuzz", "admin", "a=admin"))
        if mechanism == "PLAIN":
            return sasl_dialog.plain_token(user, self.random.choice(("", "wrong", "x" * 10_000)), authzid)
        if mechanism == "OAUTHBEARER":
            return sasl_dialog.bearer_token(self.random)
        if dialog.challenge and self.random.random() < 0.8:
            password = self._password if self.random.random() < 0.5 else "wrong"
            return sasl_dialog.client_final(dialog.mechanism, password, dialog.bare, dialog.challenge)
        nonce = self.random.choice((f"{self.random.getrandbits(64):x}", "", ",", "x" * 4000))
        return sasl_dialog.client_first(user, nonce, authzid)[0]

    # TLS.

    def _hello_damaged(self, dialog: Dialog) -> bytes:
        return mutated(self.random, self._hello)

    def _hello_whole(self, dialog: Dialog) -> bytes:
        return self._hello

    def _hello_half(self, dialog: Dialog) -> bytes:
        return self._hello[: self.random.randrange(len(self._hello))]

    def _tls_record(self, dialog: Dialog) -> bytes:
        kind, version = self.random.choice((20, 21, 22, 23, 24, 255)), self.random.choice((0x301, 0x303, 0x304, 0))
        body = self.random.randbytes(self.random.choice((0, 1, 50, 1000)))
        length = self.random.choice((len(body), 16_384, 18_433, 65_535))
        return struct.pack(">BHH", kind, version, length) + body

    def _spoken_plainly(self, dialog: Dialog) -> bytes:
        """A client without TLS at the port of those with it; or a browser."""
        return self.random.choice(
            (framed(self._frame()), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", self._bare_token(dialog))
        )


def client_hello() -> bytes:
    """The first flight of a TLS client."""
    context = ssl.create_default_context()
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


REQUESTS: Mapping[str, int] = {
    "good_request": 20,
    "mutated_request": 40,
    "burst": 10,
    "mutated_stream": 10,
    "random_frame": 5,
    "random_body": 10,
    "odd_version": 3,
    "random_bytes": 4,
    "half_a_frame": 4,
    "large_announcement": 3,
}
SASL: Mapping[str, int] = {
    "handshake": 15,
    "mutated_handshake": 10,
    "token": 60,
    "good_token": 20,
    "mutated_authenticate": 30,
    "bare_token": 5,
}
TLS: Mapping[str, int] = {
    "hello_damaged": 40,
    "hello_whole": 10,
    "hello_half": 10,
    "tls_record": 20,
    "random_bytes": 10,
    "spoken_plainly": 10,
}
ENDING = ("half_a_frame", "hello_half")
"""After these the connection is dropped."""
