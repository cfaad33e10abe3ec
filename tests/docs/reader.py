"""A reader of a page: one terminal (bash), one Python prompt, and brokers in other terminals.

Everything is typed in page order, in the folder of a clone. What a command changes (the directory, variables, an
activated environment) holds for the next one. Brokers on the reader's machine may use the port 9092 already, so the
ports of the pages are replaced by free ones, in what is typed and in what is expected.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from random import SystemRandom
from types import TracebackType

from tests.docs.pages import Step, is_as_shown
from tests.waiting import wait_until

_PORTS = {9092: 0, 9093: 1, 9094: 2, 9192: 3, 9193: 4, 9194: 5}
"""The ports of the pages, and where they are among the free ones."""
_SERVES = re.compile(r"(make run|skep serve)\b")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")
"""What a terminal shows no longer: progress bars return to the beginning of their line."""
_READY, _CLUSTER_READY = " ready on ", "skep: cluster of "
START_TIMEOUT_S = 900.0
"""``make run`` may have to install everything first."""
STOP_TIMEOUT_S = 60.0

_PROMPT = """
import importlib, json, os, sys, traceback
names = {"__name__": "__main__"}
for line in os.fdopen(int(sys.argv[1])):
    path, page = json.loads(line)
    importlib.invalidate_caches()
    try:
        exec(compile(open(path).read(), page, "exec"), names)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os.write(int(sys.argv[2]), b"%d\\n" % code)
"""


class PageFailed(AssertionError):
    """A step of a page failed, or printed something else than the page shows."""


class PageDiffers(PageFailed):
    """A step worked, but printed something else than the page shows. The next step can be typed."""


def free_ports() -> dict[int, int]:
    """Returns a free port for each port of the pages. Consecutive ones stay consecutive."""
    while True:
        # Below the range from which the system takes ports for connections.
        first = SystemRandom().randrange(20_000, 32_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for at in _PORTS.values():
                stack.enter_context(socket.create_server(("127.0.0.1", first + at)))
            return {port: first + at for port, at in _PORTS.items()}


class Reader:
    """Types the steps of one page. ``close`` ends everything that was started."""

    def __init__(self, page: str, clone: Path, timeout_s: float, environment: dict[str, str] | None = None) -> None:
        self._page = page
        self._timeout_s = timeout_s
        self._scratch = Path(tempfile.mkdtemp(prefix="skep-page-"))
        self.ports = free_ports()
        address = f"127.0.0.1:{self.ports[9092]}"
        inherited = {name: text for name, text in os.environ.items() if not name.startswith(("SKEP_", "VIRTUAL_ENV"))}
        self._terminal = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=clone,
            env={
                **inherited,
                **(environment or {}),
                "SKEP_BOOTSTRAP": address,
                "SKEP_LISTENERS": address,
                "COLUMNS": "200",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where bash says that it has ended a broker; commands have their own
            text=True,
            start_new_session=True,
        )
        self._python: subprocess.Popen[str] | None = None
        self._requests = self._responses = -1
        self._brokers: list[int] = []
        # Each broker gets a process group, by which it is ended.
        self.enter("set -m")

    def do(self, step: Step) -> None:
        """Types one step. Raises PageFailed with the place on the page and everything that was printed."""
        text = self._with_free_ports(step.text)
        if step.kind == "tests":
            code, printed = self._run_tests(text, step.line)
        elif step.kind == "code":
            code, printed = self._type_python(text)
        elif _SERVES.match(text):
            code, printed = self.serve(text)
        else:
            code, printed = self.enter(text)
        printed = _OVERWRITTEN.sub("", printed)
        where = f"{self._page}:{step.line}\n{text}\n"
        if code:
            raise PageFailed(f"{where}failed with exit code {code} and printed\n{printed}")
        if step.shown and not is_as_shown(printed, self._with_free_ports(step.shown)):
            raise PageDiffers(f"{where}printed\n{printed}\nand the page shows\n{step.shown}")

    def serve(self, command: str) -> tuple[int, str]:
        """Starts brokers, as in another terminal, and waits until they are ready."""
        command = command.partition("#")[0].rstrip().removesuffix("&")
        log = self._scratch / f"broker-{len(self._brokers)}.log"
        log.touch()
        code, pid = self.enter(f"{{ {command}; }} >{log} 2>&1 </dev/null &\necho $!")
        if code:
            return code, pid
        self._brokers.append(int(pid))
        ready = _CLUSTER_READY if "--brokers" in command else _READY
        wait_until(
            lambda: ready in log.read_text() or not _runs(int(pid)),
            lambda: f"{command} is ready: {log.read_text()}",
            START_TIMEOUT_S,
        )
        return 0 if ready in log.read_text() else 1, log.read_text()

    def _with_free_ports(self, text: str) -> str:
        return re.sub(r"\b\d{4}\b", lambda found: str(self.ports.get(int(found[0]), found[0])), text)

    def enter(self, command: str) -> tuple[int, str]:
        """Types a command into the terminal; returns its exit code and what it printed, errors included."""
        script, output = self._scratch / "command", self._scratch / "output"
        script.write_text(f"{command}\n")
        assert self._terminal.stdin is not None
        assert self._terminal.stdout is not None
        self._terminal.stdin.write(f". {script} >{output} 2>&1 </dev/null; echo $?\n")
        self._terminal.stdin.flush()
        code = self._line_from(self._terminal.stdout.fileno())
        return int(code or 1), output.read_text(errors="replace")

    def _type_python(self, code: str) -> tuple[int, str]:
        if self._python is None:
            self._open_python()
        script, output = self._scratch / "code.py", self._scratch / "python-output"
        script.write_text(code)
        before = output.stat().st_size
        os.write(self._requests, json.dumps([str(script), self._page]).encode() + b"\n")
        exit_code = self._line_from(self._responses)
        return int(exit_code or 1), output.read_bytes()[before:].decode(errors="replace")

    def _open_python(self) -> None:
        """Starts the Python that the terminal would start, with the terminal's variables."""
        _, found = self.enter("command -v python; pwd; env -0")
        python, folder, variables = found.split("\n", 2)
        request, self._requests = os.pipe()
        self._responses, response = os.pipe()
        with open(self._scratch / "python-output", "w") as output:
            self._python = subprocess.Popen(
                [python, "-c", _PROMPT, str(request), str(response)],
                cwd=folder,
                env=dict(variable.split("=", 1) for variable in variables.split("\0") if "=" in variable),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(request, response),
                text=True,
                start_new_session=True,
            )
        os.close(request)
        os.close(response)

    def _run_tests(self, code: str, line: int) -> tuple[int, str]:
        folder = self._scratch / f"tests-{line}"
        folder.mkdir()
        (folder / "test_page.py").write_text(code)
        return self.enter(f"(cd {folder} && python -m pytest -q -p no:cacheprovider)")

    def _line_from(self, descriptor: int) -> str:
        """Reads the line that ends a step. Returns an empty one if its process has ended."""
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([descriptor], [], [], self._timeout_s)[0]:
                raise PageFailed(f"{self._page}: a step took more than {self._timeout_s:.0f} s")
            if not (read := os.read(descriptor, 1)):
                return ""
            line += read
        return line.decode().strip()

    def close(self) -> None:
        for group in self._brokers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not any(map(_runs, self._brokers)), "the brokers stop", STOP_TIMEOUT_S)
        groups = [*self._brokers, self._terminal.pid, *([self._python.pid] if self._python is not None else [])]
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._terminal.communicate()
        if self._python is not None:
            self._python.wait()
            os.close(self._requests)
            os.close(self._responses)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
