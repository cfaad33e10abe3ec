"""The value of Kafka's ``sasl.jaas.config``: a login module with options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";

The name of the module only says which mechanism is meant. Nothing is loaded by it, and a name that is not one of
Kafka's three is refused: classes by name were CVE-2023-25194 and its successors. Errors name an option, never a value.

The syntax is that of Kafka's JaasConfig: values with or without double or single quotes, backslash escapes in quotes,
comments of Java. Exactly one module; the control flag is read and means nothing.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from skep.base.errors import OptionError
from skep.base.secret import Secret

PLAIN, SCRAM, OAUTHBEARER = "PLAIN", "SCRAM", "OAUTHBEARER"
"""What a login module is for. SCRAM is for both of its mechanisms."""

MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": PLAIN,
    "org.apache.kafka.common.security.scram.ScramLoginModule": SCRAM,
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": OAUTHBEARER,
}
SHADED = "kafkashaded."
"""Some builds of Spark need this prefix before the names of Kafka's classes. It is ignored."""

CONTROL_FLAGS = {"required", "requisite", "sufficient", "optional"}
_USER = "user_"

_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
    | (?P<quoted> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<sign> [=;] )
    | (?P<word> [^\s=;"'/]+ (?: /(?![/*]) [^\s=;"'/]* )* )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class Jaas(NamedTuple):
    """A parsed ``sasl.jaas.config``. All values of options are secrets, since a password can be in any of them."""

    login: str
    """PLAIN, SCRAM or OAUTHBEARER."""
    options: Mapping[str, Secret]

    @property
    def username(self) -> str | None:
        value = self.options.get("username")
        return None if value is None else value.reveal()

    @property
    def password(self) -> Secret | None:
        return self.options.get("password")

    @property
    def users(self) -> dict[str, Secret]:
        """The users that a broker's PLAIN accepts: ``user_alice="secret"``."""
        return {name[len(_USER) :]: value for name, value in self.options.items() if name.startswith(_USER)}


def parse_jaas(text: str, option: str = "sasl.jaas.config") -> Jaas:
    """Raises OptionError, which names ``option`` and does not contain values."""
    tokens = _tokens(text, option)
    match tokens:
        case [("word", module), ("word", flag), *rest] if flag.lower() in CONTROL_FLAGS:
            pass
        case [("word", _), *_]:
            raise OptionError(f"{option}: the login module is followed by one of {', '.join(sorted(CONTROL_FLAGS))}")
        case _:
            raise OptionError(f"{option}: expected the name of a login module, 'required', options, and a semicolon")
    login = MODULES.get(module.removeprefix(SHADED))
    if login is None:
        known = ", ".join(MODULES)
        raise OptionError(f"{option}: unknown login module {module[:200]!r}; known are {known}")
    return Jaas(login, _options(rest, option))


def _tokens(text: str, option: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise OptionError(f"{option}: cannot be read at character {position + 1}: is a quote missing?")
        position = token.end()
        if token.lastgroup == "quoted":
            found.append(("quoted", _ESCAPE.sub(_unescaped, token[0][1:-1])))
        elif token.lastgroup is not None:
            found.append((token.lastgroup, token[0]))
    return found


def _unescaped(escape: re.Match[str]) -> str:
    return _ESCAPES.get(escape[1], escape[1])


def _options(tokens: list[tuple[str, str]], option: str) -> dict[str, Secret]:
    options: dict[str, Secret] = {}
    last = "the control flag"
    while True:
        match tokens:
            case [("sign", ";")]:
                return options
            case [("sign", ";"), *_]:
                raise OptionError(f"{option}: more than one login module, or text after the semicolon")
            case [("word" | "quoted", name), ("sign", "="), ("word" | "quoted", value), *tokens]:
                if name in options:
                    raise OptionError(f"{option}: the option {name!r} is given twice")
                options[name] = Secret(value)
                last = repr(name)
            case []:
                raise OptionError(f"{option}: the semicolon at the end is missing")
            case _:
                # What stands here may be the rest of a password with an unescaped quote, so it is not shown.
                raise OptionError(f"{option}: expected NAME=VALUE or a semicolon after {last}")
