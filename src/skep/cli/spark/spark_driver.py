"""Starting Spark from a command: check for Java, start a JVM, and send its output to a log file.

The JVM is a child of the command with a pipe as its standard input. It ends when the pipe closes, also after a ``kill
-9`` of the command. Ctrl-C does not reach it (pyspark blocks the signal): the command ends it in an orderly way.

The JVM lives as long as one command, so Java objects that Python no longer references can stay in it. py4j's memory
management would release them from a thread that runs once a second, also while the JVM is ending, and would log errors
then; it is turned off.
"""

import contextlib
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from skep.base.extras import how_to_install
from skep.cli.failures import CommandError, OutputClosed
from skep.cli.spark.spark_failures import one_line

MIN_JAVA = 17
REQUIRED_MODULE = "jdk.incubator.vector"
"""Spark starts its JVM with this module. A minimal runtime that lacks it exits at once."""
JVM_STOP_TIMEOUT_S = 20.0
JVM_CRASH_TIMEOUT_S = 5.0
"""How long a crashed JVM may take to exit after its connections are lost."""
LOG_TAIL_LINES = 200
_INSTALL_JAVA = f"apt-get install openjdk-{MIN_JAVA}-jre-headless"
_LOG_CONFIG = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


class RunAbandoned(Exception):
    """Raised where Spark is used: what it is doing is to be abandoned, so its JVM is killed."""


def check_java() -> None:
    """Raises CommandError, with what to install, if there is no Java that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    try:
        result = subprocess.run([java or "java", "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        found = f"JAVA_HOME={home} has no working java" if home else "no java was found"
        raise CommandError(f"Spark needs Java {MIN_JAVA} or newer, and {found}: {_INSTALL_JAVA}") from None
    version = java_version(result.stderr)
    if version is not None and version < MIN_JAVA:
        raise CommandError(f"Spark needs Java {MIN_JAVA} or newer, and {java} is Java {version}: {_INSTALL_JAVA}")
    if not _has_modules(java or "java"):
        raise CommandError(f"Spark needs a full Java runtime, and {java} lacks {REQUIRED_MODULE}: {_INSTALL_JAVA}")


def _has_modules(java: str) -> bool:
    """Returns whether Java has the module that Spark requires; True if Java does not list its modules."""
    try:
        result = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return True
    modules = {line.partition("@")[0].strip() for line in result.stdout.splitlines()}
    # Every runtime has java.base; output without it is not a list of modules.
    return "java.base" not in modules or REQUIRED_MODULE in modules


def java_version(text: str) -> int | None:
    """Returns 17 for ``openjdk version "17.0.15"``, 8 for the older ``"1.8.0_292"``, None for other text."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def import_pyspark() -> None:
    """Imports pyspark and turns off its own error output. Raises CommandError, with the extra, if it is missing."""
    # pyspark warns about the version of pandas at every import.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    # A failed run closes its session together with the listener of its queries.
    warnings.filterwarnings("ignore", message="Failed to remove the listener")
    # As does one that is stopped.
    warnings.filterwarnings("ignore", message="StreamingQueryListenerBus Handler")
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        raise CommandError(f"Spark is not installed: {how_to_install('spark')}") from None
    # These print an exception with its stack trace before it is raised; the command reports it in one line.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    # py4j does the same, on the root logger and on its own, if Ctrl-C interrupts a call or the JVM is gone.
    logging.getLogger().addFilter(_is_not_from_py4j)
    logging.getLogger("py4j").propagate = False


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


@contextmanager
def spark_driver(
    settings: Mapping[str, str], log: IO[bytes], launched: Callable[["subprocess.Popen[Any]"], None] = lambda _: None
) -> Iterator[Any]:
    """Yields a SparkContext with a JVM of its own that logs to ``log``. The JVM is ended in every case.

    The caller has called ``check_java`` before. ``launched`` gets the process, the leader of a process group, before
    Spark has started: who kills the group ends the start with a CommandError.
    """
    import_pyspark()
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    _set_environment(settings, log)
    # A JVM that is killed leaves its temporary files behind.
    scratch = Path(tempfile.mkdtemp(prefix="skep-spark-"))
    # Executors on other machines would get it too.
    places = {"spark.local.dir": str(scratch)} if _is_local(settings) else {}
    conf = SparkConf()
    for name, value in {**_QUIET, **_PATIENT, **places, **_java_settings(log, scratch), **settings}.items():
        conf.set(name, value)
    gateway = None
    at_once = False
    try:
        try:
            with _killed_if_interrupted(launched):
                gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
            gateway.gateway_property.enable_memory_management = False
            with _sigint_handler_kept():
                context = SparkContext(conf=conf, gateway=gateway)
        except (PySparkRuntimeError, Py4JError) as error:
            raise CommandError(f"Spark did not start: {_logged_error(log) or one_line(error)}") from None
        try:
            yield context
        except OutputClosed:
            raise
        except (KeyboardInterrupt, RunAbandoned):
            at_once = True
            raise
        except Exception as error:  # a JVM that has ended shows as any of many exceptions; all others are raised again
            if any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error)):
                # Ctrl-C interrupted a call to Java, and pyspark's cleanup then found the connection closed.
                at_once = True
                raise KeyboardInterrupt from None
            if (code := _exit_code(gateway, error)) is not None:
                raise CommandError(f"Spark's JVM ended with exit code {code} before the command was done") from None
            if isinstance(error, Py4JError) and (logged := _logged_error(log)) is not None:
                # The session was not created, because the master does not answer: the log says it best.
                raise CommandError(f"Spark failed: {logged}") from None
            raise
    finally:
        try:
            if gateway is not None:
                _end(gateway, at_once=at_once)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _killed_if_interrupted(launched: Callable[["subprocess.Popen[Any]"], None]) -> Iterator[None]:
    """Kills the JVM that is started inside the ``with`` if that fails, as by Ctrl-C.

    launch_gateway forgets its process then. The JVM would not end with its pipe either: it fails to write its port into
    a folder that is deleted by then, and stays. It gets a session of its own, so that the launcher that precedes it, a
    shell and another JVM, can be killed with it.
    """
    from pyspark import java_gateway

    started: list[subprocess.Popen[Any]] = []

    def start(*arguments: Any, **settings: Any) -> "subprocess.Popen[Any]":
        with _signals_deferred():
            process = subprocess.Popen(*arguments, start_new_session=True, **settings)
            started.append(process)
        launched(process)
        return process

    spark_own = java_gateway.Popen  # type: ignore[attr-defined]
    java_gateway.Popen = start  # type: ignore[assignment, attr-defined]
    try:
        yield
    except BaseException:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
    finally:
        java_gateway.Popen = spark_own  # type: ignore[attr-defined]


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Handles signals after the ``with``. An exception in the middle of Popen would lose the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in received:
            signal.raise_signal(one)


@contextmanager
def _sigint_handler_kept() -> Iterator[None]:
    """Restores the SIGINT handler. SparkContext's own calls Java in the middle of another call, and both fail."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _exit_code(gateway: Any, error: BaseException) -> int | None:
    """Returns the exit code of the JVM if it has ended. If ``error`` is a lost connection, waits for it to end."""
    from py4j.protocol import Py4JError, Py4JJavaError

    for cause in _causes(error):
        if isinstance(cause, Py4JError | ConnectionError | EOFError) and not isinstance(cause, Py4JJavaError):
            try:
                return int(gateway.proc.wait(JVM_CRASH_TIMEOUT_S))
            except subprocess.TimeoutExpired:
                return None
    code: int | None = gateway.proc.poll()
    return code


def _causes(error: BaseException) -> list[BaseException]:
    """Returns the error and its causes, also those hidden by ``from None``."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
# A Python worker has 15 s to connect by default, which is too short on a busy machine.
_PATIENT = {"spark.python.authenticate.socketTimeout": "60s"}
_WORKERS_PYTHON = """\
#!/bin/sh
rest=$PYTHONPATH: kept=
while [ -n "$rest" ]; do
  entry=${{rest%%:*}} rest=${{rest#*:}}
  case $entry in {zips}) ;; *) kept=$kept${{kept:+:}}$entry ;; esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def workers_python(log: Path) -> str:
    """Returns the command that starts the Python workers of a local Spark: this Python, without the zips of pyspark.

    Spark puts pyspark.zip and py4j's zip first on PYTHONPATH. They contain sources only, so every worker compiles
    pyspark again: 1.1 s of the 1.6 s it takes to start, and a flow of a pipeline starts five. The installed packages
    are the same and have bytecode. No property leaves the zips out, hence a script beside ``log``.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    script = log.with_suffix(".python.sh").resolve()
    zips = sorted((home / "python" / "lib").glob("*.zip"))
    if not zips or Path(os.environ.get("SPARK_HOME", home)).resolve() != home.resolve():
        return sys.executable  # not the Spark of the wheel: its pyspark may differ from the installed one
    if shlex.quote(str(script)) != str(script):
        return sys.executable  # Spark passes the path to a shell, and finds no data sources if it contains a space
    patterns = "|".join(shlex.quote(str(path)) for path in zips)
    script.write_text(_WORKERS_PYTHON.format(zips=patterns, python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    # Not executable on a file system that is mounted noexec.
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _set_environment(settings: Mapping[str, str], log: IO[bytes]) -> None:
    """Sets the variables that Spark's JVM and its workers inherit."""
    # Workers must run this Python, with its installed packages, and not the first python3 on the PATH.
    python = workers_python(Path(log.name)) if _is_local(settings) else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    # The workers that run the driver side of a data source use this variable.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    if path := os.environ.get("PYTHONPATH"):
        # Workers have other working directories, so that relative paths must become absolute.
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, path.split(os.pathsep))))
    if _is_local(settings):
        # Without it spark-submit resolves the host name and may warn about the result.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _is_local(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", "local").startswith("local")


def _java_settings(log: IO[bytes], scratch: Path) -> dict[str, str]:
    """Returns the options of the JVM: a log configuration in a file beside ``log``, and where temporary files go.

    Spark's default log configuration is made for a shell.
    """
    config = Path(log.name).with_suffix(".log4j2.properties").resolve()
    config.write_text(_LOG_CONFIG)
    # The embedded metastore would write its log into the current directory.
    options = {
        "log4j2.configurationFile": config.as_uri(),
        "derby.stream.error.file": config.with_name("derby.log"),
        "java.io.tmpdir": scratch,
    }
    return {"spark.driver.extraJavaOptions": " ".join(f"'-D{name}={value}'" for name, value in options.items())}


_LOG_TIME = re.compile(r"^[-0-9]+ [:0-9]+ (?=[A-Z]+ )")
_ERROR = "ERROR "
_GENERIC_ERROR = "Error initializing SparkContext."
"""Its cause is in the next line."""


def _logged_error(log: IO[bytes]) -> str | None:
    """Returns the line of the JVM's log with the cause: the first ERROR, else an exception, else the last line."""
    lines = [_LOG_TIME.sub("", line) for line in log_tail(log) if not line.endswith(_GENERIC_ERROR)]
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    errors += [line for line in lines if "Exception" in line or "Error" in line]
    return next(iter(errors or lines[-1:]), None)


def log_tail(log: IO[bytes]) -> list[str]:
    log.flush()
    lines = Path(log.name).read_text(errors="replace").splitlines()
    return [line.strip() for line in lines[-LOG_TAIL_LINES:] if line.strip()]


def _end(gateway: Any, *, at_once: bool) -> None:
    """Ends the JVM, and kills it if it does not end in time. Python workers are its children and end with it.

    With ``at_once`` it is killed: it would wait for the end of a pipeline's run, which cannot be stopped.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = gateway.proc
    if at_once:
        process.kill()
    process.stdin.close()
    try:
        process.wait(JVM_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    except KeyboardInterrupt:
        process.kill()
        process.wait()
        raise
    # Otherwise pyspark would use this JVM again for the next start in this process.
    gateway.shutdown_callback_server()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
