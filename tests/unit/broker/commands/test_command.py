"""The arguments of a command are those that it declares, or the refusal says what is wrong."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.commands.command import (
    MAX_ARGUMENT_BYTES,
    MAX_RANGES,
    Command,
    checked_arguments,
    number,
    offset_ranges,
    text,
)

COMMAND = Command(
    lambda services, arguments: None,
    {"group": text(most=10), "limit": number(least=1, most=5, default=3), "ranges": offset_ranges()},
)
GOOD = {"group": "g", "ranges": [[0, 0], [5, 9]]}


def refused(arguments: Any) -> str:
    given = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
    with pytest.raises(KafkaError) as error:
        checked_arguments("try", COMMAND, given)
    assert error.value.code is ErrorCode.invalid_request
    assert len(str(error.value)) < 500
    return str(error.value)


def test_what_is_not_given_has_its_default() -> None:
    assert checked_arguments("try", COMMAND, json.dumps(GOOD).encode()) == {**GOOD, "limit": 3}
    assert checked_arguments("try", COMMAND, json.dumps({**GOOD, "limit": 5}).encode())["limit"] == 5


@pytest.mark.parametrize("given", [b"", b"{", b"\xff", b"nul", b"[" * 50_000, b'{"a":' * 9_000, b"1" * 5_000])
def test_what_is_not_json_is_refused(given: bytes) -> None:
    assert "not JSON" in refused(given)


@pytest.mark.parametrize("given", [b"null", b"[]", b"1", b'"group"'])
def test_arguments_are_an_object(given: bytes) -> None:
    assert "not a JSON object" in refused(given)


def test_arguments_are_not_longer_than_they_need_to_be() -> None:
    assert f"at most {MAX_ARGUMENT_BYTES}" in refused(b" " * (MAX_ARGUMENT_BYTES + 1))


def test_a_missing_argument_is_named_with_what_it_should_be() -> None:
    assert refused({}) == "the command 'try' needs the argument 'group', a string of at most 10 characters"


def test_a_misspelt_argument_is_not_ignored() -> None:
    assert refused({**GOOD, "limits": 4}) == "the command 'try' has no argument 'limits'; it takes group, limit, ranges"


@pytest.mark.parametrize("value", [None, 1, "", [], "x" * 11, "\ud800"])
def test_text_is_text(value: Any) -> None:
    if value == "":
        assert checked_arguments("try", COMMAND, json.dumps({**GOOD, "group": ""}).encode())["group"] == ""
    else:
        assert "takes as 'group' a string" in refused({**GOOD, "group": value})


@pytest.mark.parametrize("value", [None, True, 0, 6, 1.0, "1", [1], 10**4000, -(10**4000)])
def test_a_number_is_a_whole_number_within_its_bounds(value: Any) -> None:
    assert "takes as 'limit' a whole number from 1 to 5" in refused({**GOOD, "limit": value})


@pytest.mark.parametrize(
    "value", [None, 5, [], [5], [[5]], [[1, 2, 3]], [[2, 1]], [[-1, 1]], [[0, 2**63]], [["0", "1"]], [[0, True]]]
)
def test_ranges_are_pairs_of_offsets(value: Any) -> None:
    assert "pairs [first offset, last offset]" in refused({**GOOD, "ranges": value})
    assert "pairs" in refused({**GOOD, "ranges": [[0, 0]] * (MAX_RANGES + 1)})


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["group", "limit", "ranges", "other"]), json_values) | st.binary(max_size=100))
def test_any_arguments_are_taken_or_refused(arguments: Any) -> None:
    given = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
    try:
        found = checked_arguments("try", COMMAND, given)
    except KafkaError as error:
        assert error.code is ErrorCode.invalid_request
    else:
        assert found.keys() == COMMAND.arguments.keys()
