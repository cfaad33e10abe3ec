"""Exit codes and error reports: a command that fails prints one line on stderr.

====  =======================================================================================================
0     success; also when the reader of stdout has closed the pipe (``| head``)
1     the command failed: no broker, no such topic, a rejected record, a damaged file
2     usage error: a wrong option, argument or configuration
130   Ctrl-C, also where it is the only end, as of ``consume -f``
====  =======================================================================================================

Any other exception is a bug in Skep and keeps its traceback.
"""

import os
import sys
from collections.abc import Callable

INTERRUPTED = 130
"""The exit code of a command that SIGINT ended: 128 + 2, as shells report it."""


class CommandError(Exception):
    """The command failed. The message is the line that the user sees."""

    exit_code = 1


class UsageError(CommandError):
    """The command line or the configuration is wrong."""

    exit_code = 2


class OutputClosed(Exception):
    """The reader of stdout has closed the pipe. Not an OSError, because typer handles those itself."""


def run(program: str, command: Callable[[], None]) -> int:
    """Runs ``command`` and returns its exit code. An error is printed in one line."""
    exit_code = 0
    try:
        try:
            command()
        except SystemExit as end:
            exit_code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        sys.stdout.flush()
    except CommandError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return error.exit_code
    except (OutputClosed, BrokenPipeError):
        # The interpreter flushes stdout again at exit, and would report the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except _kafka_exceptions() as error:
        sys.stderr.write(f"{program}: {reason(error)}\n")
        return 1
    return exit_code


def _kafka_exceptions() -> tuple[type[BaseException], ...]:
    """Returns the exceptions of the client library, if a command has imported it. Importing it takes 0.1 s."""
    library = sys.modules.get("confluent_kafka")
    return (library.KafkaException,) if library is not None else ()


def reason(failure: object) -> str:
    """Returns the message of a KafkaException or of the KafkaError inside it: the broker's message if it sent one."""
    error = failure.args[0] if isinstance(failure, BaseException) and failure.args else failure
    text = error.str() if hasattr(error, "str") else str(error)
    return " ".join(text.removeprefix("Broker: ").removeprefix("Local: ").split()).removesuffix(".")
