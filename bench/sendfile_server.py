"""A reference: a blocking server that answers each request with a region of a file, by sendfile and nothing else.

``python -m bench.sendfile_server FILE REQUEST_SIZE`` prints its port. A request has REQUEST_SIZE bytes, the first eight
of which are the position and the next four the size of the region; the answer is the region, its length in front.
"""

import os
import socket
import struct
import sys

from skep.wire.primitives import INT32

REGION = struct.Struct(">qi")


def serve(path: str, request_size: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    descriptor = os.open(path, os.O_RDONLY)
    while True:
        connection, _address = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while request := connection.recv(request_size, socket.MSG_WAITALL):
                position, size = REGION.unpack_from(request)
                connection.send(INT32.pack(size), socket.MSG_MORE)
                end = position + size
                while position < end:
                    position += os.sendfile(connection.fileno(), descriptor, position, end - position)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
