"""Starting Spark from a command: Java is looked for first, and what Spark's JVM says goes to a log file.

The JVM is a child of the command with a pipe as its standard input; it ends when the pipe closes, so also after a
``kill -9`` of the command. Ctrl-C does not reach it (pyspark sees to that): the command ends it, in order.

The JVM lives as long as one command, so Java objects that Python has forgotten stay in it. py4j would give them back,
from a thread of its own that wakes once a second: to a JVM that is ending, too, which it then complains about.
"""

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from skep.cli.failures import CommandError, OutputClosed
from skep.cli.spark.spark_failures import one_line

OLDEST_JAVA = 17
NEEDED_MODULE = "jdk.incubator.vector"
"""Spark's JVM is started with it and ends at once where the runtime was made without it, as small ones are."""
JVM_END_TIMEOUT_S = 20.0
JVM_GONE_TIMEOUT_S = 5.0
"""How long after its connections a JVM that has crashed is gone itself."""
LOG_TAIL_LINES = 200
_INSTALL_JAVA = f"apt-get install openjdk-{OLDEST_JAVA}-jre-headless"
_LOG_CONFIG = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def check_java() -> None:
    """CommandError with what to install when there is no Java that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    try:
        answer = subprocess.run([java or "java", "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        where = f"JAVA_HOME is {home} and has no java that runs" if home else "there is none"
        raise CommandError(f"Java {OLDEST_JAVA} or newer is needed and {where}: {_INSTALL_JAVA}") from None
    version = java_version(answer.stderr)
    if version is not None and version < OLDEST_JAVA:
        raise CommandError(f"Java {OLDEST_JAVA} or newer is needed and {java} is Java {version}: {_INSTALL_JAVA}")
    if not _has_modules(java or "java"):
        raise CommandError(f"a full Java runtime is needed and {java} has no {NEEDED_MODULE}: {_INSTALL_JAVA}")


def _has_modules(java: str) -> bool:
    """Whether Spark finds the module it needs; also if Java does not say."""
    try:
        answer = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return True
    modules = {line.partition("@")[0].strip() for line in answer.stdout.splitlines()}
    # Every runtime has java.base; without it this is no list.
    return "java.base" not in modules or NEEDED_MODULE in modules


def java_version(words: str) -> int | None:
    """17 for ``openjdk version "17.0.15"``, 8 for the older ``"1.8.0_292"``, None for other words."""
    found = re.search(r'version "(?:1\.)?(\d+)', words)
    return int(found.group(1)) if found else None


def import_pyspark() -> None:
    """CommandError naming the extra when Spark is not installed."""
    # pyspark warns about versions of pandas at every import, and the user of a command can do nothing about it.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    # A run that failed takes its session with it, and the listener of its queries.
    warnings.filterwarnings("ignore", message="Failed to remove the listener")
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        raise CommandError('Spark is not installed: pip install "skep[spark]"') from None
    # These print an exception, with its stack, before it is raised. Who catches it tells it in one line.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    # So does py4j, when Ctrl-C comes while Java is asked or when Java is gone: with the root logger and with its own.
    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").propagate = False


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


@contextmanager
def spark_driver(settings: Mapping[str, str], log: IO[bytes]) -> Iterator[Any]:
    """A SparkContext with a JVM of its own that logs to ``log``. Both are gone afterwards, whatever happened.

    Whether there is Java (``check_java``) the command has asked before, first of all it does.
    """
    import_pyspark()
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    # Workers have to be this Python, with what is installed here, and not the first python3 of the PATH.
    python = workers_python(Path(log.name)) if _is_local(settings) else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    # By this name: the workers that a data source's driver side runs in.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    if path := os.environ.get("PYTHONPATH"):
        # Workers run in folders of their own, where a relative one leads nowhere.
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, path.split(os.pathsep))))
    # Else spark-submit asks the resolver for the machine's name and warns about the answer.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1") if _is_local(settings) else None
    conf = SparkConf()
    for name, value in {**_QUIET, **_PATIENT, **_log_settings(log), **settings}.items():
        conf.set(name, value)
    gateway = None
    try:
        try:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
            gateway.gateway_property.enable_memory_management = False
            with _same_ctrl_c():
                context = SparkContext(conf=conf, gateway=gateway)
        except (PySparkRuntimeError, Py4JError) as error:
            raise CommandError(f"Spark did not start: {_why(log) or one_line(error)}") from None
        try:
            yield context
        except OutputClosed:
            raise
        except Exception as error:
            if any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error)):
                # It came while Java was asked; what pyspark asked on its way out then found the connection closed.
                raise KeyboardInterrupt from None
            if (code := _exit_code(gateway, error)) is not None:
                raise CommandError(f"Spark's JVM ended with code {code} before the command was done") from None
            if isinstance(error, Py4JError) and (why := _why(log)) is not None:
                # Nobody has had better words: a session could not be made, for the master does not answer.
                raise CommandError(f"Spark gave up: {why}") from None
            raise
    finally:
        if gateway is not None:
            _end(gateway)


@contextmanager
def _same_ctrl_c() -> Iterator[None]:
    """SparkContext has Ctrl-C ask Java to cancel its jobs, in the middle of another question: py4j fails with both."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _exit_code(gateway: Any, error: BaseException) -> int | None:
    """That of the JVM if it is gone; where ``error`` comes of a lost connection it may be about to go."""
    from py4j.protocol import Py4JError, Py4JJavaError

    for cause in _causes(error):
        if isinstance(cause, Py4JError | ConnectionError | EOFError) and not isinstance(cause, Py4JJavaError):
            try:
                return int(gateway.proc.wait(JVM_GONE_TIMEOUT_S))
            except subprocess.TimeoutExpired:
                return None
    code: int | None = gateway.proc.poll()
    return code


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what it came of, also where whoever raised it wants that not to be shown."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
# A Python worker has 15 s by default to be let in; on a machine that is busy it is not lost, it is late.
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
    """What starts Python workers of a Spark on this machine: this Python, without the zip files of Spark's wheel.

    Spark puts pyspark.zip and py4j's before all else. They hold sources only, so every worker compiles pyspark anew:
    1.1 s of the 1.6 s it takes to start, and a flow of a pipeline starts five. The installed packages are the same
    and have bytecode. No setting leaves the zips out, hence a script beside ``log``.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    script = log.with_suffix(".python.sh").resolve()
    zips = sorted((home / "python" / "lib").glob("*.zip"))
    if not zips or Path(os.environ.get("SPARK_HOME", home)).resolve() != home.resolve():
        return sys.executable  # another Spark than the wheel's: its pyspark need not be the one installed here
    if shlex.quote(str(script)) != str(script):
        return sys.executable  # Spark asks a shell whether it is there, and finds no data source if a space is in it
    patterns = "|".join(shlex.quote(str(path)) for path in zips)
    script.write_text(_WORKERS_PYTHON.format(zips=patterns, python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    # False also where the file system is mounted noexec.
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _is_local(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", "local").startswith("local")


def _log_settings(log: IO[bytes]) -> dict[str, str]:
    """Spark's own default prints in colours for a person at a shell; a file beside ``log`` holds ours."""
    config = Path(log.name).with_suffix(".log4j2.properties").resolve()
    config.write_text(_LOG_CONFIG)
    # The embedded metastore writes a log too, else into the folder that the user happens to be in.
    options = {"log4j2.configurationFile": config.as_uri(), "derby.stream.error.file": config.with_name("derby.log")}
    return {"spark.driver.extraJavaOptions": " ".join(f"'-D{name}={value}'" for name, value in options.items())}


_LOGGED = re.compile(r"^[-0-9]+ [:0-9]+ (?=[A-Z]+ )")
_ERROR = "ERROR "
_SAYS_NOTHING = "Error initializing SparkContext."
"""What is wrong comes in the next line."""


def _why(log: IO[bytes]) -> str | None:
    """The line of the JVM's log that names what is wrong: an error of Spark's own, else an exception, else the last."""
    lines = [_LOGGED.sub("", line) for line in log_tail(log) if not line.endswith(_SAYS_NOTHING)]
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    errors += [line for line in lines if "Exception" in line or "Error" in line]
    return next(iter(errors or lines[-1:]), None)


def log_tail(log: IO[bytes]) -> list[str]:
    log.flush()
    lines = Path(log.name).read_text(errors="replace").splitlines()
    return [line.strip() for line in lines[-LOG_TAIL_LINES:] if line.strip()]


def _end(gateway: Any) -> None:
    """Ends the JVM, at first by asking. Python workers are its children and end with it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(JVM_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # What pyspark remembers of this JVM would be used by the next start in this process.
    gateway.shutdown_callback_server()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
