"""A small disk for one broker, which a test can fill; it outlives the broker, not the test.

The disk is a tmpfs in a mount namespace that a process holds open; brokers are started inside that namespace. It needs
``unshare`` and ``nsenter`` (util-linux), and either root or user namespaces.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

_IS_ROOT = os.geteuid() == 0
_UNSHARE = ["unshare", "--mount"] if _IS_ROOT else ["unshare", "--mount", "--map-root-user"]
_NSENTER = ["--mount"] if _IS_ROOT else ["--mount", "--user", "--preserve-credentials"]
_STEP = 1 << 20


class SmallDisk:
    """Mounted at ``directory`` for who runs in its namespace. ``path`` is where everybody else sees it."""

    def __init__(self, directory: Path, size: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        script = f'mount -t tmpfs -o size={size} tmpfs "{directory}" && echo mounted && exec cat'
        self._holder = subprocess.Popen(
            [*_UNSHARE, "--", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"mounted\n":
            raise RuntimeError("a tmpfs cannot be mounted: neither root nor user namespaces")
        self.path = Path(f"/proc/{self._holder.pid}/root{directory}")
        self._ballast = self.path / "ballast"

    def interpreter(self, beside: Path) -> str:
        """A program that runs Python where the disk is; it is written into the directory ``beside``."""
        script = beside / "python-on-a-small-disk"
        entered = f"exec nsenter --target {self._holder.pid} {' '.join(_NSENTER)}"
        # nsenter goes to the root directory, and PYTHONPATH may be relative.
        script.write_text(f'#!/bin/sh\n{entered} -- sh -c \'cd "$0" && exec "$@"\' "$PWD" "{sys.executable}" "$@"\n')
        script.chmod(0o755)
        return str(script)

    def fill(self) -> None:
        """To the last page."""
        with open(self._ballast, "ab") as ballast:
            step, size = _STEP, 0
            while step >= 4096:
                try:
                    os.posix_fallocate(ballast.fileno(), size, step)
                    size += step
                except OSError:
                    step //= 2

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        with contextlib.suppress(OSError):
            self._holder.stdin.close()
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()
