from datetime import UTC, datetime

import pytest

from skep.cli.failures import UsageError
from skep.cli.moments import parse_duration_ms, parse_moment, shown_moment
from tests.manual_clock import ManualClock

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW_MS),
        ("1714564800000", 1_714_564_800_000),
        ("-1h", NOW_MS - 3_600_000),
        ("-1h30m", NOW_MS - 5_400_000),
        ("-2d", NOW_MS - 172_800_000),
        ("-500ms", NOW_MS - 500),
        ("2024-05-01T12:00:00Z", 1_714_564_800_000),
        ("2024-05-01T14:00:00+02:00", 1_714_564_800_000),
        ("2024-05-01T12:00:00.250Z", 1_714_564_800_250),
    ],
)
def test_a_moment_is_understood_in_all_its_spellings(text: str, moment: int) -> None:
    assert parse_moment(text, ManualClock(NOW_MS)) == moment


def test_a_date_without_a_zone_is_local_time() -> None:
    local = datetime(2024, 5, 1, 12, 0, 0).astimezone()
    assert parse_moment("2024-05-01T12:00:00", ManualClock()) == int(local.timestamp() * 1000)


@pytest.mark.parametrize("text", ["yesterday", "1h", "-1y", "-", "-h", "", "2024-13-01", "-1h 30m", "٣"])
def test_what_is_no_moment_is_refused_with_the_text_in_the_complaint(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time") as refusal:
        parse_moment(text, ManualClock())
    assert f"'{text}'" in str(refusal.value)


def test_a_shown_moment_has_milliseconds_and_reads_back() -> None:
    shown = shown_moment(1_714_564_800_007)
    assert shown.endswith(".007")
    assert datetime.fromisoformat(shown).astimezone(UTC) == datetime(2024, 5, 1, 12, 0, 0, 7000, tzinfo=UTC)


def test_a_timestamp_outside_the_calendar_is_shown_as_a_number() -> None:
    assert shown_moment((1 << 63) - 1) == str((1 << 63) - 1)
    assert shown_moment(-1) == "-"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("10d", 864_000_000),
        ("PT1H30M", 5_400_000),
        ("P2D", 172_800_000),
        ("P1DT2H", 93_600_000),
        ("PT0.5S", 500),
        ("pt5m", 300_000),
    ],
)
def test_a_duration_is_understood_as_we_and_as_kafka_write_it(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "1", "-1h", "P", "PT", "1h 30m", "1y", "PT1X"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration_ms(text)
