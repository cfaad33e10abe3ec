"""A PostgreSQL server of a test's own, in a directory of its own, reached by a Unix socket there.

Debian's package may run another server on the machine; this one does not meet it. PostgreSQL refuses to run as root,
so a test that does starts it as the user ``postgres``, whom the package creates.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from tests.waiting import wait_until

USER = "postgres"


def _program(name: str) -> str:
    """Debian has the programs of the server in a folder for each version, which is not on the PATH."""
    found = [shutil.which(name), *sorted(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), reverse=True)]
    path = next((one for one in found if one is not None), None)
    assert path is not None, "PostgreSQL is not installed: apt-get install postgresql"
    return path


class PostgresqlServer:
    """Runs inside the ``with``. ``address`` is for ``psycopg.connect``."""

    def __init__(self) -> None:
        # Not in pytest's directory, which the other user may not enter.
        self._directory = tempfile.mkdtemp(prefix="skep-postgresql-")
        self.address = f"host={self._directory} user={USER} dbname=postgres"
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self._directory, USER, USER)
            self._as_user = {"user": USER, "group": USER, "extra_groups": ()}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PostgresqlServer":
        data = os.path.join(self._directory, "data")
        options = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", f"--username={USER}"]
        self._call([_program("initdb"), "-D", data, *options])
        # Kills are of its clients; nothing needs to survive a power cut.
        settings = {"listen_addresses": "", "unix_socket_directories": self._directory, "fsync": "off"}
        command = [_program("postgres"), "-D", data, *(f"--{name}={value}" for name, value in settings.items())]
        with open(os.path.join(self._directory, "log"), "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory, **self._as_user)
        wait_until(self._answers, "PostgreSQL answers")
        return self

    def _call(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, cwd=self._directory, **self._as_user)
        assert done.returncode == 0, done.stderr

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, Path(self._directory, "log").read_text()
        try:
            psycopg.connect(self.address).close()
        except psycopg.OperationalError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # "fast": ends its sessions
            self._process.wait()
        shutil.rmtree(self._directory)
