"""Tries wrong passwords at a listener with SASL: ``python -m bench.password_guesser HOST PORT COUNT``.

One in ten by PLAIN, which costs the broker a hash, the others by SCRAM-SHA-256; two hundred connections at a time, each
of which waits for the broker's delay.
"""

import asyncio
import struct
import sys

from tests.fuzz.sasl_dialog import authenticate, client_first, framed, handshake, plain_token

AT_A_TIME = 200


async def guess(host: str, port: int, number: int) -> bool:
    """Returns whether the broker refused it; False if it closed the connection before."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if number % 10 == 0:
            await _ask(reader, writer, handshake("PLAIN"))
            await _ask(reader, writer, authenticate(plain_token("fuzz", f"guess-{number}")))
        else:
            await _ask(reader, writer, handshake("SCRAM-SHA-256"))
            first, _ = client_first("fuzz", f"{number:x}")
            await _ask(reader, writer, authenticate(first))
            await _ask(reader, writer, authenticate(b"c=biws,r=guess,p=AAAA"))
        return True
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(framed(frame))
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(length)


async def main(host: str, port: int, count: int) -> None:
    room = asyncio.Semaphore(AT_A_TIME)
    refused = 0

    async def one(number: int) -> None:
        nonlocal refused
        async with room:
            was_refused = await guess(host, port, number)
            refused += was_refused

    await asyncio.gather(*(one(number) for number in range(count)))
    print(f"  {refused:,} of {count:,} guesses were refused, the others cut off", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
