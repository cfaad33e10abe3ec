"""The current TLS context of a listener: made again when a file or an option has changed, and watched for its end.

Open connections keep the context they began with. New files that cannot be used, say because the key has been written
and the certificate not yet, leave the old context in place.
"""

import asyncio
import datetime
import logging
import os
import ssl
from collections.abc import Callable

from skep.base.config.security_config import SecurityConfig
from skep.base.errors import OptionError
from skep.base.extras import how_to_install
from skep.security.tls.distinguished_name import check_installed, expiry_of
from skep.security.tls.server_context import certificate_chain, server_context

logger = logging.getLogger(__name__)

WARN_DAYS = (30, 7, 1)

_Stamp = tuple[tuple[int, int, int] | None, ...]


class ListenerTls:
    """Owns the context of one listener. ``context`` is always one that could be made."""

    def __init__(self, listener: str, security: SecurityConfig) -> None:
        """Raises OptionError, or StartupError without what reads the certificates of clients."""
        if security.ssl_client_auth != "none":
            check_installed()
        self._listener = listener
        self._security = security
        self._stamp = _stamp(security)
        self.context: ssl.SSLContext = server_context(security)
        self._warned_below: int | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called after the files or the options of this listener have changed."""

    def current(self) -> ssl.SSLContext:
        return self.context

    def reconfigure(self, security: SecurityConfig) -> None:
        """Takes changed options, if they can be used."""
        if security != self._security:
            self._replace(security, _stamp(security))

    async def check_files(self) -> None:
        """Reads the files again if they have changed."""
        stamp = await asyncio.to_thread(_stamp, self._security)
        if stamp != self._stamp:
            self._replace(self._security, stamp)

    def _replace(self, security: SecurityConfig, stamp: _Stamp) -> None:
        self._stamp = stamp
        try:
            self.context = server_context(security)
        except OptionError as error:
            logger.error("listener %s keeps its certificate, the new one cannot be used: %s", self._listener, error)
            return
        self._security = security
        self._warned_below = None
        logger.info("listener %s has a new certificate or new options of TLS", self._listener)
        self.on_change()
        self.warn_of_expiry()

    def warn_of_expiry(self, now: datetime.datetime | None = None) -> None:
        """Logs that the certificate ends soon, once for each of ``WARN_DAYS``."""
        now = now or datetime.datetime.now(datetime.UTC)
        try:
            left = expiry_of(certificate_chain(self._security)) - now
        except ImportError:
            logger.info("the end of certificates is not watched without cryptography: %s", how_to_install("tls"))
            return
        except (OSError, ValueError) as error:
            logger.warning("listener %s: the end of its certificate is not known: %s", self._listener, error)
            return
        below = min((days for days in WARN_DAYS if left < datetime.timedelta(days=days)), default=None)
        if left < datetime.timedelta():
            logger.error("the certificate of listener %s has expired; clients refuse it", self._listener)
        elif below is not None and below != self._warned_below:
            hours = int(left.total_seconds()) // 3600
            shown = f"{hours // 24} days" if hours >= 48 else f"{hours} hours"
            logger.warning(
                "the certificate of listener %s expires in %s (ssl.keystore.location)", self._listener, shown
            )
        self._warned_below = below


def _stamp(security: SecurityConfig) -> _Stamp:
    """Returns what changes when a file is written or replaced."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in (security.ssl_keystore_location, security.ssl_truststore_location):
        try:
            found = os.stat(path) if path else None
        except OSError:
            found = None
        stamps.append(None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(stamps)
