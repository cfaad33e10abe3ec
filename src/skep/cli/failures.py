"""How a command ends: an exit code and, when it fails, one clear line on stderr.

====  ==========================================================================================
0     done; also when the reader of our output went away (``| head``) or Ctrl-C ended a listening
1     asked rightly and could not be done: no broker, no such topic, a record refused, a damaged file
2     asked wrongly
====  ==========================================================================================

What is none of these is a bug of ours and keeps its traceback.
"""

import os
import sys
from collections.abc import Callable

INTERRUPTED = 130
"""What a shell gives a command that Ctrl-C ended in the middle of its work."""


class CommandError(Exception):
    """It could not be done; the message is the whole line that the user sees."""

    exit_code = 1


class UsageError(CommandError):
    """It was asked wrongly."""

    exit_code = 2


class OutputClosed(Exception):
    """Nobody reads our output any more. Not an OSError: typer would make an exit code of its own out of that."""


def run(program: str, command: Callable[[], None]) -> int:
    """The exit code of ``command``, with its failure told in one line."""
    exit_code = 0
    try:
        try:
            command()
        except SystemExit as end:
            exit_code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        sys.stdout.flush()
    except CommandError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    except (OutputClosed, BrokenPipeError):
        # The interpreter flushes stdout once more when it ends, and would complain about the same closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except _kafka_exceptions() as error:
        print(f"{program}: {reason(error)}", file=sys.stderr)
        return 1
    return exit_code


def _kafka_exceptions() -> tuple[type[BaseException], ...]:
    """What the client library raises; nothing when no command has imported it, which takes 0.1 s."""
    library = sys.modules.get("confluent_kafka")
    return (library.KafkaException,) if library is not None else ()


def reason(failure: object) -> str:
    """A KafkaException, or the KafkaError inside it, as a sentence: the broker's own words where it sent some."""
    error = failure.args[0] if isinstance(failure, BaseException) and failure.args else failure
    text = error.str() if hasattr(error, "str") else str(error)
    return " ".join(text.removeprefix("Broker: ").removeprefix("Local: ").split()).removesuffix(".")
