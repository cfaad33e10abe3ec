"""Random requests of every API and version that is served: well formed, as kio writes them, whatever they say."""

import dataclasses
import datetime
import io
import json
import math
import random
import struct
import types
import typing
import uuid
from typing import Any

from kio.serial import entity_writer

from skep.broker.handlers.skep_command import COMMANDS
from skep.records.builder import NewRecord, build_batch
from skep.wire.apis import SERVED, SKEP_COMMAND, Api
from skep.wire.codec import request_class

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 17, "timedelta_i32": 32}

ODD_NAMES = ("", ".", "..", "../../etc/passwd", "a/b", "a b", "näme", "x" * 249, "x" * 250, "__consumer_offsets", "\0")


class RequestMaker:
    """Makes requests out of one source of randomness, so that a seed makes the same ones again.

    ``names`` are drawn where a request has a string: topics that there are, among those that there cannot be.
    """

    def __init__(self, source: random.Random, names: tuple[str, ...] = ("fuzzed-a", "fuzzed-b")) -> None:
        self.random = source
        self._names = names

    def any_api(self) -> tuple[Api, int]:
        api = self.random.choice(list(SERVED.values()))
        return api, self.random.randint(api.oldest, api.newest)

    def request(self, api: Api, version: int) -> Any:
        if api is SKEP_COMMAND and self.random.random() < 0.8:
            return self._command()
        return self._entity(request_class(api.key, version))

    def frame(self, api: Api, version: int, request: Any | None = None) -> bytes:
        """Header and body, without the length."""
        if request is None:
            request = self.request(api, version)
        header = struct.pack(">hhih4s", api.key, version, self.random.getrandbits(31), 4, b"fuzz")
        if version >= api.flexible_from:
            header += b"\0"
        buffer = io.BytesIO(header)
        buffer.seek(0, io.SEEK_END)
        entity_writer(type(request))(buffer, request)
        return buffer.getvalue()

    def _command(self) -> Any:
        """A command that there is, with arguments of its names, most of them of their kind."""
        name, command = self.random.choice(list(COMMANDS.items()))
        arguments = {
            argument_name: next((one for one in self._values() if argument.is_valid(one)), None)
            if self.random.random() < 0.9
            else self.random.choice(self._values())
            for argument_name, argument in command.arguments.items()
            if self.random.random() < (0.98 if argument.is_required else 0.5)
        }
        text = json.dumps(arguments).encode()
        return request_class(SKEP_COMMAND.key, 0)(command=name, arguments=text)

    def _values(self) -> list[Any]:
        """Values of JSON, in any order."""
        name, number = self.random.choice(self._names), self._number(64)
        first, last = sorted((self.random.randrange(100), self.random.choice((3, 99, abs(number) // 2))))
        values = [
            name,
            self.random.choice(ODD_NAMES),
            0,
            1,
            number,
            None,
            {},
            0.5,
            True,
            [name],
            [[name, str(uuid.uuid4())]],
        ]
        values += [[[first, last]], [[number, 0]]]
        self.random.shuffle(values)
        return values

    def _entity(self, entity: Any) -> Any:
        return entity(**{field.name: self._field(field) for field in dataclasses.fields(entity)})

    def _field(self, field: "dataclasses.Field[Any]") -> Any:
        hint: Any = field.type
        if isinstance(hint, types.UnionType):
            # A null that is a tagged field's default is not written.
            if self.random.random() < 0.2:
                return None
            [hint] = [part for part in typing.get_args(hint) if part is not types.NoneType]
        if typing.get_origin(hint) is tuple:
            element = typing.get_args(hint)[0]
            return tuple(self._value(element, field) for _ in range(self.random.choice((0, 1, 1, 2, 3))))
        return self._value(hint, field)

    def _value(self, hint: Any, field: "dataclasses.Field[Any]") -> Any:
        if dataclasses.is_dataclass(hint):
            return self._entity(hint)
        kafka_type = field.metadata["kafka_type"]
        if kafka_type == "string":
            return self.random.choice(self._names if self.random.random() < 0.7 else ODD_NAMES)
        if kafka_type == "bool":
            return self.random.random() < 0.5
        if kafka_type == "uuid":
            return uuid.UUID(int=self.random.getrandbits(128))
        if kafka_type in ("bytes", "records"):
            return self._records()
        if kafka_type in ("timedelta_i32", "timedelta_i64"):
            return datetime.timedelta(milliseconds=self.random.choice((0, 1, 100)))
        if kafka_type == "float64":
            return self.random.choice((0.0, 0.5, 1024.0, -5.0, 1e308, -0.0, math.inf, -math.inf, math.nan))
        return self._number(BITS[kafka_type])

    def _number(self, bits: int) -> int:
        largest = (1 << (bits - 1)) - 1
        if self.random.random() < 0.7:
            return self.random.choice((0, 0, 1, 1, 2, -1))
        return self.random.choice((largest, -largest - 1, self.random.randint(-largest - 1, largest)))

    def _records(self) -> bytes:
        """A batch, as often as not one that the broker accepts."""
        count = self.random.randint(1, 3)
        batch = bytearray(build_batch([NewRecord(None, self.random.randbytes(20), 1) for _ in range(count)]))
        if self.random.random() < 0.5:
            batch[self.random.randrange(len(batch))] ^= 1 << self.random.randrange(8)
        return bytes(batch)
