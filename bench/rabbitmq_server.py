"""A RabbitMQ node of Debian's package, for one run: its own ports, files and name service, all gone at the end.

The package is installed if that is missing and this is root. Debian would start a node at once, and at every boot, so
the installation is told that services must not be started (``policy-rc.d``). Erlang nodes find each other through a
daemon, epmd, which outlives them; here it is a child process of its own on a port of its own.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.row import say
from skep.base.reserved_port import ReservedPort

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PACKAGE = "rabbitmq-server"
NODE = "skep-bench@localhost"
START_TIMEOUT_S = 120.0
_POLICY = Path("/usr/sbin/policy-rc.d")
_STARTED = "Server startup complete"


class RabbitMissing(Exception):
    """Why there is no RabbitMQ, and what to do."""


def install() -> None:
    """Installs the package if it is not there. Raises RabbitMissing."""
    if SERVER.exists():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RabbitMissing(f"RabbitMQ is not installed: apt-get install {PACKAGE}")
    say(f"installing {PACKAGE}")
    with _no_services():
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", PACKAGE]):
            done = subprocess.run(
                ["apt-get", *arguments],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise RabbitMissing(f"apt-get {arguments[0]} failed: {done.stderr.strip()[-300:]}")


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Packages that are installed meanwhile start nothing."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


@contextlib.contextmanager
def rabbitmq() -> Iterator[tuple[int, int]]:
    """A node that serves: its port and the id of its process."""
    install()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skep-rabbitmq-")))
        port, epmd_port, dist_port = _free_ports(3)
        environment = _environment(folder, port, epmd_port, dist_port)
        stack.enter_context(_process(["epmd", "-port", str(epmd_port)], environment, folder / "epmd.log"))
        log = folder / "server.log"
        server = stack.enter_context(_process([str(SERVER)], environment, log))
        _wait(server, log)
        yield port, _beam(server.pid)


def _free_ports(count: int) -> list[int]:
    ports = [ReservedPort("127.0.0.1") for _ in range(count)]
    # Erlang does not bind a port that is reserved.
    for port in ports:
        port.release()
    return [port.number for port in ports]


def _environment(folder: Path, port: int, epmd_port: int, dist_port: int) -> dict[str, str]:
    configuration = folder / "rabbitmq.conf"
    configuration.write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\n"
        "disk_free_limit.absolute = 50MB\n"
        "log.console = true\n"
        "log.console.level = info\n"
    )
    (folder / "enabled_plugins").write_text("[].\n")
    return {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": NODE,
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_CONFIG_FILE": str(configuration),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Killed at the end, with all processes that it has started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _wait(server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while _STARTED not in (said := log.read_text(errors="replace")):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"RabbitMQ did not start: {said[-2000:]}")
        time.sleep(0.1)


def _beam(pid: int) -> int:
    """The Erlang machine, which may be a child of the script that has started it."""
    import psutil  # type: ignore[import-untyped]

    top = psutil.Process(pid)
    found = [one for one in (top, *top.children(recursive=True)) if one.name().startswith("beam")]
    return found[0].pid if found else pid
