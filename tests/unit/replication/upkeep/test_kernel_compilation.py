"""Kernels are compiled ahead, by a process that goes with the broker; where there is no compiler, nothing is."""

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from skep.replication.upkeep import kernel_compilation
from skep.replication.upkeep.kernel_compilation import compile_missing, missing
from tests.waiting import wait_until

Started = list[asyncio.subprocess.Process]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The processes that were started."""
    real_start = asyncio.create_subprocess_exec
    processes: Started = []

    async def start(*arguments: str, **options: object) -> asyncio.subprocess.Process:
        processes.append(await real_start(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    return processes


@pytest.fixture
def _nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process and the one that it starts, which has its cache in the temporary directory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))


def test_the_sources_are_those_of_the_modules() -> None:
    for name in kernel_compilation._NEEDS:
        assert kernel_compilation._source(name) == importlib.import_module(name).__file__


def test_once_the_kernels_were_imported_nothing_is_missing_and_no_process_is_started(
    tmp_path: Path, started: Started
) -> None:
    kernel_compilation.compile_now(missing())
    assert missing() == []
    asyncio.run(asyncio.wait_for(compile_missing(str(tmp_path)), 30))
    assert started == []


@pytest.mark.usefixtures("_nothing_is_compiled")
def test_a_broker_that_stops_ends_the_compiler(tmp_path: Path, started: Started) -> None:
    assert len(missing()) == 2

    async def scenario() -> None:
        compiling = asyncio.create_task(compile_missing(str(tmp_path)))
        while not started:
            await asyncio.sleep(0.001)
        compiling.cancel()
        await asyncio.gather(compiling, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert not psutil.pid_exists(started[0].pid)


@pytest.mark.usefixtures("_nothing_is_compiled")
def test_a_broker_that_is_killed_ends_the_compiler(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from skep.replication.upkeep.kernel_compilation import compile_missing\n"
        "asyncio.run(compile_missing(sys.argv[1]))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    broker = psutil.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    (compiler,) = wait_until(broker.children, "the compiler starts")
    broker.kill()
    broker.wait()
    wait_until(lambda: _has_ended(compiler), "the compiler ends")


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return True


def test_without_a_compiler_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing() == []


def test_the_compiler_ends_quietly_while_its_broker_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "skep.replication.upkeep.kernel_compilation", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as compiler:
        assert compiler.stderr is not None
        assert compiler.stderr.read() == b""
        assert compiler.wait() == 0
