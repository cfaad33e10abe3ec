"""Parses regular expressions over topic names, in RE2's syntax, into a tree; ``topic_pattern`` matches with it.

Members send these expressions and the broker matches them on its event loop, so their cost is limited. As in RE2
nothing needs backtracking (no references to groups, no lookahead or lookbehind), and the size is limited. Topic names
consist of 65 characters; a character class is the set of those that it contains.

Left out: ``\\b`` and ``\\B``, and classes of Unicode properties (``\\pL``). Lazy quantifiers and group names are
parsed and ignored: the whole name matches or it does not.
"""

import string
from dataclasses import dataclass

from skep.base.errors import ErrorCode, KafkaError

ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
MAX_REPEAT = 1000
MAX_DEPTH = 50
MAX_LENGTH = 8_000
MAX_SIZE = 2000
"""Nodes of an expression after its counted repetitions are expanded."""

_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_NONE: frozenset[str] = frozenset()
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _NONE}
_POSIX = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": ALPHABET,
    "blank": _NONE,
    "cntrl": _NONE,
    "digit": _DIGITS,
    "graph": ALPHABET,
    "lower": frozenset(string.ascii_lowercase),
    "print": ALPHABET,
    "punct": frozenset("._-"),
    "space": _NONE,
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_ESCAPED = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class OneOf:
    characters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Edge:
    """The start or the end of the name."""

    is_end: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Node"
    least: int
    most: int | None


Node = OneOf | Edge | Sequence | Choice | Repeat


def parse(text: str) -> Node:
    """Raises INVALID_REGULAR_EXPRESSION, with what is wrong."""
    parser = _Parser(text)
    if len(text) > MAX_LENGTH:
        raise parser.error(f"it is longer than {MAX_LENGTH} characters")
    node = parser.choice(0)
    if parser.position < len(text):
        raise parser.error("a closing parenthesis without an opening one")
    if size_of(node) > MAX_SIZE:
        raise parser.error(f"it is larger than {MAX_SIZE} when its repetitions are expanded")
    return node


def size_of(node: Node) -> int:
    if isinstance(node, Repeat):
        return 1 + size_of(node.part) * max(1, node.least, node.most or 0)
    if isinstance(node, Sequence | Choice):
        return 1 + sum(map(size_of, node.parts))
    return 1


class _Parser:
    """Reads the text once. ``ignores_case`` is the flag in force at ``position``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.ignores_case = False

    def error(self, problem: str) -> KafkaError:
        shown = self.text if len(self.text) <= 100 else self.text[:100] + "..."
        return KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {problem}.",
        )

    def choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} nested groups")
        outside = self.ignores_case
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        # A flag applies up to the end of its group.
        self.ignores_case = outside
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.position < len(self.text) and self.text[self.position] not in "|)":
            atom = self._atom(depth)
            if atom is not None:
                parts.append(self._repeated(atom))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, atom: Node) -> Node:
        counts = self._quantifier()
        if counts is None:
            return atom
        self._take("?")
        if self._quantifier() is not None:
            raise self.error("a repetition of a repetition")
        return Repeat(atom, *counts)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counts
        end = self.text.find("}", self.position)
        if not self.text.startswith("{", self.position) or end < 0:
            return None
        low, comma, high = self.text[self.position + 1 : end].partition(",")
        if not (low.isascii() and low.isdigit()) or not (high == "" or (high.isascii() and high.isdigit())):
            return None  # a literal brace
        self.position = end + 1
        least, most = int(low[:5]), int(high[:5]) if high else None if comma else int(low[:5])
        if least > MAX_REPEAT or (most is not None and not least <= most <= MAX_REPEAT):
            raise self.error(f"the repetition {{{low}{comma}{high}}} is out of range (at most {MAX_REPEAT})")
        return least, most

    def _atom(self, depth: int) -> Node | None:
        character = self._next()
        if character == "(":
            return self._group(depth)
        if character == "[":
            return OneOf(self._class())
        if character == ".":
            return OneOf(ALPHABET)
        if character in "^$":
            return Edge(is_end=character == "$")
        if character in "*+?":
            raise self.error("a repetition of nothing")
        if character == "\\":
            return self._escape()
        return OneOf(self._cased(frozenset(character)))

    def _group(self, depth: int) -> Node | None:
        outside = self.ignores_case
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                # Also refuses the lookbehinds (?<= and (?<!.
                if not self._until(">").replace("_", "a").isalnum():
                    raise self.error("a group has an invalid name")
            elif self._flags():
                return None
        node = self.choice(depth + 1)
        if not self._take(")"):
            raise self.error("a group is not closed")
        self.ignores_case = outside
        return node

    def _flags(self) -> bool:
        """Reads flags as in ``i-s:`` or ``i)``. Returns whether the group ends with them."""
        is_set = True
        while True:
            flag = self._next()
            if flag == "-":
                is_set = False
            elif flag == "i":
                self.ignores_case = is_set
            elif flag in ":)":
                return flag == ")"
            elif flag not in "msU":
                raise self.error(f"(?{flag} is not supported")

    def _escape(self) -> Node:
        character = self._next()
        if character in "Az":
            return Edge(is_end=character == "z")
        if character == "Q":
            quoted, _, _ = self.text[self.position :].partition("\\E")
            self.position = min(len(self.text), self.position + len(quoted) + 2)
            return Sequence(tuple(OneOf(self._cased(frozenset(one))) for one in quoted))
        return OneOf(self._cased(self._escaped(character)))

    def _escaped(self, character: str) -> frozenset[str]:
        if character.lower() in _CLASSES:
            characters = _CLASSES[character.lower()]
            return characters if character.islower() else ALPHABET - characters
        if character == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            try:
                return frozenset(chr(int(digits, 16)))
            except (ValueError, OverflowError):
                raise self.error(f"\\x{digits} is not a character") from None
        if character in _ESCAPED:
            return frozenset(_ESCAPED[character])
        if character.isascii() and character.isalnum():
            raise self.error(f"\\{character} is not supported")
        return frozenset(character)

    def _class(self) -> frozenset[str]:
        is_negated = self._take("^")
        characters: frozenset[str] = frozenset()
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            if self._take("[:"):
                name = self._until(":]")
                if name.removeprefix("^") not in _POSIX:
                    raise self.error(f"[:{name}:] is not a character class")
                named = _POSIX[name.removeprefix("^")]
                characters |= ALPHABET - named if name.startswith("^") else named
                continue
            characters |= self._class_range()
        characters = self._cased(characters)
        return ALPHABET - characters if is_negated else characters & ALPHABET

    def _class_range(self) -> frozenset[str]:
        low = self._class_character()
        if not self.text.startswith("-", self.position) or self.text.startswith("-]", self.position):
            return low
        self.position += 1
        high = self._class_character()
        if len(low) != 1 or len(high) != 1 or min(low) > min(high):
            raise self.error("a character range is out of order")
        return frozenset(one for one in ALPHABET if min(low) <= one <= min(high))

    def _class_character(self) -> frozenset[str]:
        character = self._next()
        return self._escaped(self._next()) if character == "\\" else frozenset(character)

    def _cased(self, characters: frozenset[str]) -> frozenset[str]:
        if not self.ignores_case:
            return characters
        return characters | {one.lower() for one in characters} | {one.upper() for one in characters}

    def _next(self) -> str:
        if self.position >= len(self.text):
            raise self.error("it ends too early")
        self.position += 1
        return self.text[self.position - 1]

    def _take(self, token: str) -> bool:
        if self.text.startswith(token, self.position):
            self.position += len(token)
            return True
        return False

    def _until(self, token: str) -> str:
        end = self.text.find(token, self.position)
        if end < 0:
            raise self.error(f"{token} is missing")
        found = self.text[self.position : end]
        self.position = end + len(token)
        return found
