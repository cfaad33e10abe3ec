"""Certificates for tests: an authority, and what it has signed for names of this machine."""

import subprocess
from pathlib import Path
from typing import NamedTuple

DAYS = "2"


class Signed(NamedTuple):
    certificate: Path
    key: Path

    @property
    def both(self) -> Path:
        """One file with key and certificate, as ZooKeeper wants it."""
        joined = self.key.with_suffix(".both.pem")
        joined.write_text(self.key.read_text() + self.certificate.read_text())
        return joined


class Authority:
    """Owns a directory with its own key and certificate and those that it has signed."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self.certificate, self._key = directory / f"{name}.pem", directory / f"{name}.key"
        made = ["-keyout", str(self._key), "-out", str(self.certificate)]
        _openssl("req", "-x509", *_NEW_KEY, "-days", DAYS, "-subj", f"/CN={name}", *made)

    def sign(self, name: str) -> Signed:
        """For ``name`` on 127.0.0.1."""
        key, certificate = self._directory / f"{name}.key", self._directory / f"{name}.pem"
        request, extensions = self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        _openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signing = ["-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial", "-days", DAYS]
        asked = ["-in", str(request), "-extfile", str(extensions), "-out", str(certificate)]
        _openssl("x509", "-req", *signing, *asked)
        return Signed(certificate, key)


_NEW_KEY = ("-newkey", "rsa:2048", "-nodes", "-sha256")


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
