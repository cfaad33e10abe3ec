"""The order in which a share fetch serves classes of topics: strict, or by weights with which nothing starves."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.base.config.share_group_config import SHARE_GROUP_OPTIONS
from skep.base.errors import OptionError
from skep.broker.share.priorities import Turn, priorities_of, settle, turns

STRICT = priorities_of(("high", "middle", "low"))
WEIGHTED = priorities_of(("high:8", "middle:4", "low:1"))


def test_topics_have_the_class_of_their_place_and_others_the_last_one():
    assert [STRICT.class_of(topic) for topic in ("high", "low", "unknown")] == [0, 2, 3]
    assert STRICT.weights == ()
    assert WEIGHTED.weights == (8, 4, 1, 1)
    assert priorities_of(()).class_of("any") == 0


def test_strict_classes_are_served_in_order_and_each_may_get_all_that_is_left():
    assert turns(STRICT, [2, 0, 3], [2, 3], {}, 500) == [Turn(0), Turn(2), Turn(3)]


def test_weighted_classes_share_what_is_there_among_those_that_have_records():
    assert turns(WEIGHTED, [0, 1, 2], [0, 1, 2], {}, 1300) == [Turn(0, 800), Turn(1, 400), Turn(2, 100)]
    assert turns(WEIGHTED, [0, 1, 2], [0, 2], {}, 900) == [Turn(0, 800), Turn(1), Turn(2, 100)]


def test_a_class_that_is_behind_its_weight_comes_first_and_one_that_is_ahead_gets_what_others_leave():
    served = {0: 400.0, 1: 100.0, 2: 100.0}
    assert turns(WEIGHTED, [0, 1, 2], [0, 1, 2], served, 50) == [Turn(1, 100), Turn(0), Turn(2)]


def test_a_class_that_had_no_records_for_long_does_not_make_up_for_it():
    served = {0: 8000.0, 2: 1000.0}
    settle(WEIGHTED, [0, 1, 2], [1], served)
    assert not any(served.values())
    assert turns(WEIGHTED, [0, 1, 2], [0, 1, 2], served, 1300) == [Turn(0, 800), Turn(1, 400), Turn(2, 100)]


@settings(max_examples=60)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=4), st.data(), st.sampled_from([5, 50, 500]))
def test_no_class_starves_however_large_its_batches_are(weights, data, max_records):
    batch_sizes = data.draw(st.lists(st.integers(1, 500), min_size=len(weights), max_size=len(weights)))
    priorities = priorities_of(tuple(f"t{number}:{weight}" for number, weight in enumerate(weights)))
    served: dict[int, float] = {}
    got: Counter[int] = Counter()
    classes = range(len(weights))
    for _ in range(500):
        left = max_records
        for number, most in turns(priorities, classes, classes, served, max_records):
            if left <= 0:
                break
            size = batch_sizes[number]
            taken = -(-min(left, most or left) // size) * size
            left -= taken
            got[number] += taken
            served[number] = served.get(number, 0) + taken
        settle(priorities, classes, (), served)
        assert sum(served.values()) <= 10 * (sum(batch_sizes) + max_records)
        for number, weight in enumerate(weights):
            fair = sum(got.values()) * weight / sum(weights)
            # Never further from its part than the batch that came last, and what a fetch may have.
            assert abs(got[number] - fair) <= 2 * (max(batch_sizes) + max_records)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("a:1,b", "a weight to all topics, or to none"),
        ("a,a", "different topics"),
        ("a:0,b:1", "between 1 and 1000"),
        ("a:1001", "between 1 and 1000"),
        ("a b", "a list of TOPIC"),
        ("a:x", "a list of TOPIC"),
        (",".join(f"t{number}" for number in range(101)), "100 at the most"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(value, problem):
    with pytest.raises(OptionError, match=problem):
        SHARE_GROUP_OPTIONS["skep.share.priority"].parse(value)


def test_an_option_is_shown_as_it_was_given():
    option = SHARE_GROUP_OPTIONS["skep.share.priority"]
    assert option.show(option.parse("a.high:8, a:4,a.low:1")) == "a.high:8,a:4,a.low:1"
    assert option.parse("") == ()
