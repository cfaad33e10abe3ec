"""Who may log in at which listener: reads the options of SASL and begins logins."""

from collections.abc import Callable, Collection

from skep.base.clock import Clock
from skep.base.config.security_config import MECHANISMS, OAUTHBEARER, PLAIN, SecurityConfig
from skep.base.errors import OptionError
from skep.base.extras import how_to_install
from skep.base.jaas import parse_jaas
from skep.base.loop.supervisor import Supervisor
from skep.base.secret import Secret
from skep.metadata.cluster_image import ClusterImage
from skep.security.sasl.jwks import URL, Jwks, check_url
from skep.security.sasl.mechanisms import Begin, Mechanisms
from skep.security.sasl.oauth_bearer_mechanism import OAuthBearerMechanism
from skep.security.sasl.password_checks import PasswordChecks
from skep.security.sasl.plain_mechanism import PlainMechanism
from skep.security.sasl.scram_mechanism import ScramMechanism
from skep.security.sasl.token_validator import TokenValidator
from skep.security.users import Users
from skep.wire.sasl.scram_keys import SCRAMS

OptionsOf = Callable[[str], SecurityConfig]
"""Returns the options of a listener as they apply to one of its mechanisms."""


class Authenticator:
    """Owns the threads that check passwords and the keys of tokens. Listeners of the same options share the keys."""

    def __init__(self, image: Callable[[], ClusterImage], clock: Clock) -> None:
        self.users = Users(image)
        self._clock = clock
        self._passwords = PasswordChecks(self.users)
        self._jwks: dict[str, Jwks] = {}

    def mechanisms(self, listener: str, options_of: OptionsOf, enabled: Collection[str]) -> Mechanisms:
        """Returns the mechanisms of a listener. Raises OptionError, which names the listener, for bad options."""
        begin: dict[str, Begin] = {}
        for name in MECHANISMS:
            if name in enabled:
                begin[name] = self._begin(listener, name, options_of(name))
        return Mechanisms(begin)

    def start(self, supervisor: Supervisor) -> None:
        """Begins to fetch the keys of tokens."""
        for jwks in self._jwks.values():
            jwks.start(supervisor)

    def close(self) -> None:
        self._passwords.close()

    def _begin(self, listener: str, name: str, options: SecurityConfig) -> Begin:
        if name in SCRAMS:
            scram = SCRAMS[name]
            return lambda: ScramMechanism(scram, self.users)
        if name == PLAIN:
            listed = listed_users(listener, options)
            return lambda: PlainMechanism(self._passwords, listed)
        validator = self._validator(listener, options)
        return lambda: OAuthBearerMechanism(validator)

    def _validator(self, listener: str, options: SecurityConfig) -> TokenValidator:
        check_oauth(listener, options)
        url = options.sasl_oauthbearer_jwks_endpoint_url
        if url not in self._jwks:
            self._jwks[url] = Jwks(
                url,
                self._clock,
                refresh_ms=options.sasl_oauthbearer_jwks_endpoint_refresh_ms,
                backoff_ms=options.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
                max_backoff_ms=options.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
            )
        return TokenValidator(
            self._jwks[url],
            self._clock,
            issuer=options.sasl_oauthbearer_expected_issuer,
            audiences=options.sasl_oauthbearer_expected_audience,
            subject_claim=options.sasl_oauthbearer_sub_claim_name,
            skew_s=options.sasl_oauthbearer_clock_skew_seconds,
        )


def listed_users(listener: str, options: SecurityConfig) -> dict[str, Secret]:
    """Returns the users of PLAIN that the listener's JAAS config lists."""
    if not options.sasl_jaas_config:
        return {}
    jaas = parse_jaas(options.sasl_jaas_config, f"sasl.jaas.config of the listener {listener}")
    return jaas.users if jaas.login == PLAIN else {}


def check_oauth(listener: str, options: SecurityConfig) -> None:
    """Refuses what would accept tokens without knowing who they are from and whom they are for."""
    needed = {
        URL: options.sasl_oauthbearer_jwks_endpoint_url,
        "sasl.oauthbearer.expected.issuer": options.sasl_oauthbearer_expected_issuer,
        "sasl.oauthbearer.expected.audience": options.sasl_oauthbearer_expected_audience,
    }
    if missing := [name for name, value in needed.items() if not value]:
        raise OptionError(f"the listener {listener} offers {OAUTHBEARER}, which needs {', '.join(missing)}")
    check_url(options.sasl_oauthbearer_jwks_endpoint_url)
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise OptionError(f"{OAUTHBEARER} needs joserfc: {how_to_install('oauth')}") from None
