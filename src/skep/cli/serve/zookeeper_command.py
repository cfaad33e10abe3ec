"""``skep zookeeper``: run a ZooKeeper server on this machine, to try out a cluster."""

import signal
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from skep.base.errors import StartupError
from skep.cli.failures import CommandError


def register(app: typer.Typer) -> None:
    app.command("zookeeper")(zookeeper)


def zookeeper(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="The data directory; created if missing.")
    ] = Path("skep-zookeeper"),
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="The port; 0 is any free port.")
    ] = 2181,
) -> None:
    """Run a ZooKeeper server for development, until Ctrl-C or SIGTERM.

    It is Apache ZooKeeper, from the jars in pyspark. It needs Java and listens on 127.0.0.1 only. Brokers use it with
    skep serve --metadata zk://127.0.0.1:2181.

    \b
    Examples:
      skep zookeeper
      skep zookeeper --data-dir /tmp/zk --port 2281
    """
    from skep.zookeeper_server import ZooKeeperServer

    signal.signal(signal.SIGTERM, _interrupt)
    server = ZooKeeperServer(data_dir, port)
    try:
        with server:
            typer.echo(f"skep: zookeeper ready on {server.address}, data in {data_dir}")
            exit_code = server.wait()
    except StartupError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        return
    raise CommandError(f"ZooKeeper ended with exit code {exit_code}; see {data_dir}/zookeeper.log")


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
