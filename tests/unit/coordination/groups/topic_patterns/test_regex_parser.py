"""Regular expressions over topic names: what they match, what is refused, and that none takes long."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.topic_patterns.topic_pattern import MAX_REMEMBERED, TopicPattern

names = st.text("abAB01._-", min_size=1, max_size=8)
atoms = st.sampled_from(
    ["a", "b", "A", "0", r"\.", ".", "[ab]", "[^a]", "[a-zA-Z]", r"\d", r"\W", "[0-9_.-]", "(?:ab)", "(?i:b)", "-"]
)


def expressions(atoms):
    return st.one_of(
        st.lists(atoms, min_size=1, max_size=3).map("".join),
        st.tuples(atoms, atoms).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(atoms, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    )


@given(st.recursive(atoms, expressions, max_leaves=6), names)
def test_it_matches_what_pythons_own_expressions_match(text, name):
    assert TopicPattern(text).matches(name) == bool(re.fullmatch(text, name))


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("orders", ["orders"], ["orders2", "my-orders"]),
        ("^orders$", ["orders"], ["orders2"]),
        ("^orders.*", ["orders", "orders-eu"], ["my-orders"]),
        (".*", ["a", "a.b-c_d"], []),
        ("(?i)Orders-[a-z]{2}", ["orders-eu", "ORDERS-US"], ["orders-e"]),
        ("(?i:A)b", ["ab", "Ab"], ["aB"]),
        ("(?P<kind>a|b)-(?<place>eu|us)", ["a-eu", "b-us"], ["a-jp"]),
        ("[[:alpha:]]+", ["abc"], ["abc1"]),
        ("[[:^digit:]x]+", ["abc"], ["1"]),
        ("[]a]", ["a"], ["b"]),
        ("[a-]+", ["a-a"], ["b"]),
        (r"\Qa.b\E.?", ["a.b", "a.bc"], ["axb"]),
        (r"\Aa\x62\x{63}\z", ["abc"], ["ab"]),
        ("a|", ["a"], ["b"]),
        ("a{,3}", [], ["a", "aa"]),
        ("a$b", [], ["ab", "a"]),
        ("b^a", [], ["ba"]),
        ("(|a)b", ["b", "ab"], ["a"]),
        ("a{0}b", ["b"], ["ab"]),
        ("ü|a", ["a"], ["b"]),
        (r"[\d\-.]+", ["1-2.3"], ["a"]),
        (r"[\D]+", ["ab"], ["1"]),
    ],
)
def test_it_reads_the_syntax_of_re2(text, matching, others):
    pattern = TopicPattern(text)
    assert [name for name in matching if not pattern.matches(name)] == []
    assert [name for name in others if pattern.matches(name)] == []


@pytest.mark.parametrize(
    "text",
    [
        *("(", ")", "a)", "(a", "[a", "[", "*", "a**", "a*+", "a{2}{3}", "+a", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)"),
        *(r"(a)\1", r"\b", r"\Z", r"\pL", "\\", r"\x1", r"\xzz", r"\x{110000}", "[b-a]", r"[\d-z]", "[[:nothing:]]"),
        *("a{2,1}", "a{1001}", "a{99999999999}", "(?z)a", "(?P<a b>c)", "(?<a", "(?", "(?i", "((((a{9}){9}){9}){9})"),
        *("(?>a)", "(" * 60 + ")" * 60, "(" * 5000, "a" * 3000, "(?i)" * 3000),
    ],
)
def test_what_is_no_expression_or_too_large_is_refused(text):
    with pytest.raises(KafkaError) as caught:
        TopicPattern(text)
    assert caught.value.code is ErrorCode.invalid_regular_expression
    assert len(caught.value.detail) < 300


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["(a+)+b", "(a|a)*b", ".*.*.*.*.*.*.*b", "(a?){50}a{50}b", "((a*)*)*b"])
def test_no_expression_makes_it_go_back_and_try_again(text):
    pattern = TopicPattern(text)
    assert not pattern.matches("a" * 249)
    assert pattern.matches("a" * 90 + "b")


def test_what_it_remembers_is_bounded():
    pattern = TopicPattern("(.*a).{12}")
    for number in range(5000):
        pattern.matches(f"{number:013b}".replace("0", "a").replace("1", "b"))
    assert len(pattern._states) <= MAX_REMEMBERED
    assert pattern.matches("a" * 13)
