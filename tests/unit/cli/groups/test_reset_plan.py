import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.ids import TopicPartition
from skep.cli.failures import CommandError
from skep.cli.groups.reset_plan import Change, Marks, Reset, Target, parse_plan, plan, plan_as_csv

HERE = TopicPartition("orders", 0)
MARKS = Marks(earliest=10, latest=100, current=50, at_time=70)


def changed(reset: Reset, marks: Marks = MARKS) -> Change:
    [change] = plan(reset, {HERE: marks})
    return change


@pytest.mark.parametrize(
    ("reset", "new"),
    [
        (Reset(Target.EARLIEST), 10),
        (Reset(Target.LATEST), 100),
        (Reset(Target.CURRENT), 50),
        (Reset(Target.OFFSET, 42), 42),
        (Reset(Target.OFFSET, 10), 10),
        (Reset(Target.OFFSET, 100), 100),
        (Reset(Target.SHIFT, -5), 45),
        (Reset(Target.SHIFT, 50), 100),
        (Reset(Target.TIME, 1_700_000_000_000), 70),
        (Reset(Target.FILE, file={HERE: 33}), 33),
    ],
)
def test_each_target_gives_its_offset(reset: Reset, new: int) -> None:
    assert changed(reset) == Change(HERE, old=50, new=new, warning=None)


@pytest.mark.parametrize(
    ("reset", "new", "warning"),
    [
        (Reset(Target.OFFSET, 101), 100, "offset 101 is past the end of orders-0; using its log end offset 100"),
        (Reset(Target.OFFSET, 9), 10, "offset 9 is before the start of orders-0; using its log start offset 10"),
        (Reset(Target.SHIFT, -60), 10, "offset -10 is before the start of orders-0; using its log start offset 10"),
        (Reset(Target.SHIFT, 51), 100, "offset 101 is past the end of orders-0; using its log end offset 100"),
        (
            Reset(Target.FILE, file={HERE: 5}),
            10,
            "offset 5 is before the start of orders-0; using its log start offset 10",
        ),
    ],
)
def test_an_offset_that_is_not_there_becomes_the_nearest_with_a_warning(reset: Reset, new: int, warning: str) -> None:
    assert changed(reset) == Change(HERE, old=50, new=new, warning=warning)


def test_a_time_after_the_last_record_is_the_end_with_a_warning() -> None:
    change = changed(Reset(Target.TIME, 1), Marks(10, 100, 50, at_time=-1))
    assert change.new == 100
    assert "no record at or after that time" in str(change.warning)


def test_without_a_committed_offset_the_current_one_is_the_end_and_a_shift_is_refused() -> None:
    nothing = Marks(10, 100, current=None)
    assert changed(Reset(Target.CURRENT), nothing) == Change(HERE, None, 100)
    with pytest.raises(CommandError, match="orders-0 has no committed offset"):
        changed(Reset(Target.SHIFT, 1), nothing)


def test_a_committed_offset_of_zero_can_be_shifted() -> None:
    assert changed(Reset(Target.SHIFT, 2), Marks(0, 10, current=0)).new == 2


@given(
    st.sampled_from([Target.OFFSET, Target.SHIFT]),
    st.integers(-1000, 1000),
    st.tuples(st.integers(0, 500), st.integers(0, 500)).map(sorted),
    st.integers(0, 500),
)
def test_what_is_planned_is_always_an_offset_that_can_be_read_from(
    target: Target, value: int, ends: list[int], current: int
) -> None:
    earliest, latest = ends
    change = changed(Reset(target, value), Marks(earliest, latest, current))
    assert earliest <= change.new <= latest
    wanted = value + (current if target is Target.SHIFT else 0)
    assert (change.warning is None) == (change.new == wanted)


GROUP_NAMES = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20
)  # a group may be called anything, with commas and quotes
PLANS = st.dictionaries(
    GROUP_NAMES,
    st.dictionaries(
        st.builds(TopicPartition, st.text("ab9._-", min_size=1, max_size=5), st.integers(0, 999)),
        st.integers(0, 2**63 - 1),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)


@given(PLANS)
def test_what_is_exported_is_read_back(plans: dict[str, dict[TopicPartition, int]]) -> None:
    assert parse_plan(plan_as_csv(plans, with_group=True), "f", plans) == plans
    if len(plans) == 1:
        assert parse_plan(plan_as_csv(plans, with_group=False), "f", plans) == plans


@pytest.mark.parametrize(
    ("text", "groups", "complaint"),
    [
        ("orders,0", ["g"], "f, line 1: expected topic,partition,offset, found 'orders,0'"),
        ("orders,0,1\norders,x,1", ["g"], "f, line 2: expected topic,partition,offset"),
        ("orders,0,-1", ["g"], "line 1"),
        ("orders,0,1", ["g", "h"], "f, line 1: expected group,topic,partition,offset"),
        ("topic,partition,offset", ["g"], "line 1"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_its_line(text: str, groups: list[str], complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        parse_plan(text, "f", groups)


def test_a_file_may_name_groups_also_for_one_and_have_empty_lines() -> None:
    assert parse_plan("g,orders,0,1\n\n", "f", ["g"]) == {"g": {HERE: 1}}
