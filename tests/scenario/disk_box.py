"""A broker on a small disk of its own, which a test can fill, empty, and make read-only.

The disk is a tmpfs in a mount namespace that only the broker lives in, so nothing of it outlives the process and nobody
else sees it. It needs ``unshare`` and ``nsenter`` (util-linux, on every Debian), and either root or user namespaces.
"""

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from skep.testing import EmbeddedBroker

MEBIBYTE = 1 << 20
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
NSENTER = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--preserve-credentials"]


class Disk:
    """The disk under a running broker."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        # The kernel shows the files as the process sees them.
        self.path = Path(f"/proc/{broker.pid}/root{broker.data_dir}")
        self._ballast = self.path / "ballast"

    def fill(self, ratio: float = 1.0) -> None:
        """Uses up so much of the whole disk; 1.0: to the last page."""
        with open(self._ballast, "ab", buffering=0) as ballast:
            while self.used_ratio < ratio:
                try:
                    ballast.write(bytes(4096))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    return

    def empty(self) -> None:
        self._ballast.unlink()

    @property
    def used_ratio(self) -> float:
        space = os.statvfs(self.path)
        return 1 - space.f_bavail / space.f_blocks

    def run(self, *command: str) -> bool:
        """Runs a command where the broker sees its files; whether it succeeded."""
        entered = ["nsenter", "--target", str(self._broker.pid), *NSENTER, "--", *command]
        return subprocess.run(entered, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def boxed_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount_options: str) -> Iterator[Path]:
    """Within, brokers that start with the given data directory find a new disk there."""
    data = tmp_path / "data"
    data.mkdir()
    start = f'mount -t tmpfs -o {mount_options} tmpfs "{data}" && exec "{sys.executable}" "$@"'
    script = tmp_path / "python-in-a-box"
    script.write_text(f"#!/bin/sh\nexec {' '.join(UNSHARE)} -- sh -c '{start}' sh \"$@\"\n")
    script.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(script))
        yield data


@contextlib.contextmanager
def boxed_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Mapping[str, str], *, size: int = 8 * MEBIBYTE
) -> Iterator[tuple[EmbeddedBroker, Disk]]:
    with (
        boxed_interpreter(tmp_path, monkeypatch, f"size={size}") as data,
        EmbeddedBroker(data_dir=data, options=options) as broker,
    ):
        yield broker, Disk(broker)
