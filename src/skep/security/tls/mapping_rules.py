"""``ssl.principal.mapping.rules``: how the name in a client's certificate becomes its principal.

    RULE:^CN=(.*?),OU=.*$/$1/L, DEFAULT

A rule applies if its pattern matches the whole name. Its replacement, with ``$1`` for the first group, is the name of
the principal, with L or U in lower or upper case. DEFAULT is the name as it is. The first rule that applies counts. A
client to whom none applies is refused.
"""

import re
from typing import NamedTuple

from skep.base.errors import OptionError
from skep.security.principal import Principal

OPTION = "ssl.principal.mapping.rules"
MAX_NAME_LENGTH = 4096
"""The name is the client's, and an operator's pattern may take long for a long one."""

_PART = r"(?:\\.|[^\\/])*"
_RULE = re.compile(rf"\s*(?:DEFAULT|RULE:(?P<pattern>{_PART})/(?P<replacement>{_PART})/(?P<case>[LU]?))\s*(?:,|$)")
_GROUP = re.compile(r"\\(.)|\$(\d)")


class _Rule(NamedTuple):
    pattern: "re.Pattern[str]"
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        result = _GROUP.sub(lambda part: part[1] or found[int(part[2])] or "", self.replacement)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)


_DEFAULT = _Rule(re.compile(r"(.*)", re.DOTALL), "$1", "")


class MappingRules:
    """The rules of one listener, in order."""

    def __init__(self, text: str) -> None:
        """Raises OptionError if the text is no list of rules."""
        self._rules: list[_Rule] = []
        position = 0
        while position < len(text) or not self._rules:
            found = _RULE.match(text, position)
            if found is None or found.end() == position:
                raise OptionError(
                    f"{OPTION}={text}: expected a list of RULE:PATTERN/REPLACEMENT/[LU] and DEFAULT, not "
                    f"{text[position:] or 'nothing'!r}"
                )
            position = found.end()
            self._rules.append(_DEFAULT if found["pattern"] is None else _rule(text, found))

    def principal(self, name: str) -> Principal:
        """Returns the principal of a client with this name. Raises OptionError if no rule applies."""
        if len(name) > MAX_NAME_LENGTH:
            raise OptionError(f"the name in its certificate has {len(name)} characters; {MAX_NAME_LENGTH} are allowed")
        for rule in self._rules:
            if (mapped := rule.apply(name)) is not None:
                return Principal(mapped)
        raise OptionError(f"no rule of {OPTION} applies to the name in its certificate, {name!r}")


def _rule(text: str, found: "re.Match[str]") -> _Rule:
    try:
        pattern = re.compile(found["pattern"].replace(r"\/", "/"))
    except re.error as error:
        raise OptionError(f"{OPTION}={text}: {found['pattern']} is no pattern: {error}") from None
    groups = [int(part[2]) for part in _GROUP.finditer(found["replacement"]) if part[2]]
    if missing := [group for group in groups if group > pattern.groups]:
        raise OptionError(f"{OPTION}={text}: {found['pattern']} has no group {missing[0]}")
    return _Rule(pattern, found["replacement"], found["case"])
