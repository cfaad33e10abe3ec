"""Coroutine tests run on uvloop, as a broker does, and fail when the loop has to complain about something."""

import asyncio
import gc
import inspect
from collections.abc import Iterator

import pytest
import uvloop

from tests.unit.server.outgoing import Outgoing


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.function).parameters}
    complaints: list[dict[str, object]] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        runner.run(pyfuncitem.function(**arguments))
        # A future whose exception nobody looked at says so when it goes.
        gc.collect()
    assert complaints == []
    return True


@pytest.fixture
def line() -> Iterator[Outgoing]:
    line = Outgoing()
    yield line
    line.release()
