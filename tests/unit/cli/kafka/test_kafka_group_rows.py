from skep.base.ids import TopicPartition
from skep.cli.groups.group_admin import Committed
from skep.cli.groups.group_lag import joined_rows, total_lag
from skep.cli.groups.group_views import GroupListing, GroupView, MemberView
from skep.cli.groups.reset_plan import Change
from skep.cli.kafka.kafka_group_rows import (
    assignment_text,
    deletion_lines,
    listing_lines,
    member_lines,
    offset_lines,
    reset_lines,
    state_lines,
)

ORDERS = [TopicPartition("orders", number) for number in range(4)]
MEMBER = MemberView("rdkafka-0a1b", "billing", "/10.0.0.7", None, ORDERS[:2])
VIEW = GroupView("billing", "Stable", "Classic", "range", "b1:9092", 1, [MEMBER])
ROWS = joined_rows(
    {ORDERS[3]: Committed(5), ORDERS[0]: Committed(40, leader_epoch=2)},
    {ORDERS[0]: MEMBER, ORDERS[1]: MEMBER},
    {ORDERS[0]: 42, ORDERS[1]: 7},
)


def test_rows_are_of_what_members_have_and_then_of_what_was_only_committed() -> None:
    assert [(row.where, row.current, row.log_end, row.lag) for row in ROWS] == [
        (ORDERS[0], 40, 42, 2),
        (ORDERS[1], None, 7, None),
        (ORDERS[3], 5, None, None),
    ]
    assert total_lag(ROWS) == 2


def test_offsets_are_printed_in_kafkas_columns() -> None:
    heading, *lines = offset_lines(VIEW, ROWS, verbose=False)
    assert heading == (
        "GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             "
        "CONSUMER-ID     HOST            CLIENT-ID"
    )
    assert [line.split() for line in lines] == [
        ["billing", "orders", "0", "40", "42", "2", "rdkafka-0a1b", "/10.0.0.7", "billing"],
        ["billing", "orders", "1", "-", "7", "-", "rdkafka-0a1b", "/10.0.0.7", "billing"],
        ["billing", "orders", "3", "5", "-", "-", "-", "-", "-"],
    ]


def test_a_long_name_widens_its_column_for_all_lines() -> None:
    view = GroupView("g" * 40, "Stable", "Classic", "range", "b1:9092", 1, [MEMBER])
    heading, line, *_ = offset_lines(view, ROWS, verbose=True)
    assert heading.index("TOPIC") == line.index("orders") == 41
    assert line.split()[3] == "2"


def test_members_are_printed_with_the_columns_that_they_need() -> None:
    heading, line = member_lines(VIEW, verbose=False)
    assert heading.split() == ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    assert line.split() == ["billing", "rdkafka-0a1b", "/10.0.0.7", "billing", "2"]
    static = MemberView("m-1", "c", "/h", "till-1", ORDERS[:1], target=ORDERS[:2])
    heading, line = member_lines(GroupView("g", "Stable", "Consumer", "uniform", "b", 1, [static]), verbose=True)
    assert heading.split()[2] == "GROUP-INSTANCE-ID"
    assert line.split() == ["g", "m-1", "till-1", "/h", "c", "1", "-", "orders:0", "-", "orders:0,1"]


def test_an_assignment_is_written_by_topic() -> None:
    assert assignment_text([ORDERS[1], TopicPartition("audit", 10), ORDERS[0]]) == "audit:10;orders:0,1"
    assert assignment_text([]) is None


def test_states_listings_resets_and_deletions_have_kafkas_columns() -> None:
    heading, line = state_lines(VIEW, verbose=False)
    assert heading.split() == ["GROUP", "COORDINATOR", "(ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]
    assert line.split() == ["billing", "b1:9092", "(1)", "range", "Stable", "1"]
    listed = listing_lines([GroupListing("billing", "Empty", "Classic")], with_type=True, with_state=True)
    assert [text.split() for text in listed] == [["GROUP", "TYPE", "STATE"], ["billing", "Classic", "Empty"]]
    reset = reset_lines({"billing": [Change(ORDERS[0], 1, 2)]})
    assert [text.split() for text in reset] == [
        ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
        ["billing", "orders", "0", "2"],
    ]
    deleted = deletion_lines({ORDERS[0]: None, ORDERS[1]: "subscribed"})
    assert [text.split(maxsplit=2)[2] for text in deleted] == ["STATUS", "Successful", "Error: subscribed"]
