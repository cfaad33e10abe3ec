"""The security of one broker, in one object that ``Services`` makes: ``services.security``."""

from collections.abc import Callable

from skep.base.clock import Clock
from skep.base.config.current_config import CurrentConfig
from skep.base.config.listeners import ListenerOptions
from skep.base.config.security_config import SecurityConfig, security_of_listener
from skep.base.loop.supervisor import Supervisor
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import ClusterImage
from skep.security.access import FULL_ACCESS, Access, FullAccess
from skep.security.acls.acl import host_of
from skep.security.acls.authorizer import Authorizer, parse_super_users
from skep.security.acls.cached_access import CachedAccess
from skep.security.audit.audit import NO_AUDIT, Audit
from skep.security.audit.audit_file import AuditFile
from skep.security.authenticator import Authenticator
from skep.security.operations import Operation
from skep.security.principal import ANONYMOUS, Principal
from skep.security.quotas.quotas import Quotas, Windows
from skep.security.sasl.mechanisms import Mechanisms, check_plain
from skep.security.users import ensure_first_user, ensure_secret


class Security:
    """Decides who clients are and what they may do. Follows the image, which has the users, ACLs and quotas.

    ``authorizer`` is None if everybody may do everything. ``audit`` takes what is to be recorded, or nothing.
    """

    def __init__(self, current_config: CurrentConfig, image: Callable[[], ClusterImage], clock: Clock) -> None:
        """Raises OptionError."""
        self._current_config = current_config
        self._image = image
        config = current_config.value.security
        self.authorizer = _authorizer(config)
        self.audit = _audit(config, clock)
        self.quotas = Quotas(clock, Windows.of(config))
        self.authenticator = Authenticator(image, clock)

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Called after each change of the image and of the options in force."""
        if self.authorizer is not None:
            self.authorizer.follow(new)
        self.quotas.image_changed(new)

    def mechanisms(self, listener: ListenerOptions) -> Mechanisms:
        """Returns the SASL mechanisms of a listener. Raises OptionError."""
        config = self._current_config.value

        def options_of(mechanism: str) -> SecurityConfig:
            return security_of_listener(config.security, config.of_listeners, listener.name, mechanism)

        enabled = listener.security.sasl_enabled_mechanisms
        is_private = listener.uses_tls or listener.is_local or config.security.insecure
        check_plain(listener.name, enabled, is_private=is_private)
        return self.authenticator.mechanisms(listener.name, options_of, enabled)

    async def start(self, catalog: Catalog, supervisor: Supervisor, *, uses_sasl: bool) -> None:
        """Prepares for logins, after the mechanisms of all listeners are known. Raises OptionError."""
        await ensure_first_user(catalog, self._current_config.value.security)
        if uses_sasl:
            await ensure_secret(catalog)
            self.authenticator.start(supervisor)

    def access(self, principal: Principal, host: str, listener: str = "") -> Access:
        """Returns what a client may do that has authenticated as ``principal``, or as ANONYMOUS not at all."""
        if self.authorizer is not None:
            self.authorizer.follow(self._image())
            return CachedAccess(self.authorizer, principal, host_of(host), listener, self.audit)
        return FULL_ACCESS if principal is ANONYMOUS else FullAccess(principal, listener)

    def close(self) -> None:
        """Writes the rest of the audit log, for at most two seconds."""
        self.authenticator.close()
        self.audit.close()


def _authorizer(config: SecurityConfig) -> Authorizer | None:
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        parse_super_users(config.super_users),
        allow_everyone=config.allow_everyone_if_no_acl_found,
        only_logs=config.authorizer_mode == "log",
    )


def _audit(config: SecurityConfig, clock: Clock) -> Audit:
    if not config.audit_log:
        return NO_AUDIT
    return Audit(
        AuditFile(config.audit_log),
        operations=[Operation[name.upper()] for name in config.audit_operations],
        refusals_per_second=config.audit_refusals_per_second,
        clock=clock,
    )
