from uuid import UUID

from skep.base.ids import show_topic_id
from skep.base.unknown_names import no_such_topic


def test_a_missing_topic_is_named_with_those_that_are_close() -> None:
    assert no_such_topic("nope") == "there is no topic 'nope'"
    assert no_such_topic("order", ["orders", "bills"]) == "there is no topic 'order'; did you mean orders?"
    assert no_such_topic("order", ["orders", "order-2"]) == "there is no topic 'order'; did you mean orders or order-2?"


def test_a_topic_id_is_shown_as_kafka_shows_it() -> None:
    assert show_topic_id(UUID("6539133f-1d19-249f-aa8a-4fa947a0a893")) == "ZTkTPx0ZJJ-qik-pR6Cokw"
