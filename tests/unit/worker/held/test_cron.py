"""Cron lines and intervals: known firings, changes of the clock, and a search against a walk over every second."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.worker.held.cron import ScheduleError, read_schedule

BERLIN = "Europe/Berlin"


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def firings(line: str, start: str, count: int, zone: str | None = None) -> list[str]:
    schedule, moment, found = read_schedule(line, zone), ms(start), []
    for _ in range(count):
        moment = schedule.next_after(moment)
        local = datetime.fromtimestamp(moment / 1000, ZoneInfo(zone or "UTC"))
        found.append(local.isoformat(timespec="seconds"))
    return found


@pytest.mark.parametrize(
    ("line", "start", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:00Z", ["2026-01-01T00:01:00", "2026-01-01T00:02:00"]),
        ("* * * * *", "2026-01-01T00:00:00.500Z", ["2026-01-01T00:01:00"]),
        ("*/15 9-17 * * mon-fri", "2026-01-02T17:45:00Z", ["2026-01-05T09:00:00", "2026-01-05T09:15:00"]),
        ("30 */10 * * * *", "2026-01-01T00:00:29Z", ["2026-01-01T00:00:30", "2026-01-01T00:10:30"]),
        ("0 0 29 2 *", "2096-02-29T00:00:00Z", ["2104-02-29T00:00:00"]),
        ("0 0 31 * *", "2026-01-31T00:00:00Z", ["2026-03-31T00:00:00"]),
        ("0 12 1 jan,jul ?", "2026-01-01T12:00:00Z", ["2026-07-01T12:00:00"]),
        # Both days restricted: either.
        ("0 0 13 * 5", "2026-02-01T00:00:00Z", ["2026-02-06T00:00:00", "2026-02-13T00:00:00", "2026-02-20T00:00:00"]),
        ("0 0 * * 7", "2026-01-01T00:00:00Z", ["2026-01-04T00:00:00"]),
        ("5/20 0 * * *", "2026-01-01T00:00:00Z", ["2026-01-01T00:05:00", "2026-01-01T00:25:00", "2026-01-01T00:45:00"]),
        ("@hourly", "2026-01-01T00:00:00Z", ["2026-01-01T01:00:00"]),
        ("@every 1h30m", "2026-01-01T00:00:00Z", ["2026-01-01T01:30:00", "2026-01-01T03:00:00"]),
    ],
)
def test_known_firings(line, start, expected):
    assert [one.removesuffix("+00:00") for one in firings(line, start, len(expected))] == expected


def test_a_time_that_the_clock_skips_fires_as_much_later():
    assert firings("30 2 * * *", "2026-03-28T03:00:00+01:00", 2, BERLIN) == [
        "2026-03-29T03:30:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_a_time_that_comes_twice_fires_once():
    assert firings("30 2 * * *", "2026-10-24T03:00:00+02:00", 2, BERLIN) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]
    assert firings("30 2 * * *", "2026-10-25T02:10:00+01:00", 1, BERLIN) == ["2026-10-26T02:30:00+01:00"]


def test_a_line_for_every_hour_fires_in_each_hour_of_time():
    assert firings("30 * * * *", "2026-03-29T01:00:00+01:00", 2, BERLIN) == [
        "2026-03-29T01:30:00+01:00",
        "2026-03-29T03:30:00+02:00",
    ]
    assert firings("30 * * * *", "2026-10-25T01:45:00+02:00", 3, BERLIN) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:30:00+01:00",
    ]


def test_the_offset_of_the_season_in_which_it_fires_counts():
    assert firings("0 9 1 7 *", "2026-01-01T00:00:00Z", 1, BERLIN) == ["2026-07-01T09:00:00+02:00"]
    assert firings("0 9 1 1 *", "2026-05-01T00:00:00Z", 1, BERLIN) == ["2027-01-01T09:00:00+01:00"]


def test_a_day_that_a_zone_left_out():
    # Samoa went from December 29 to December 31, 2011.
    assert firings("0 12 * * *", "2011-12-29T13:00:00-10:00", 2, "Pacific/Apia") == [
        "2011-12-31T12:00:00+14:00",
        "2012-01-01T12:00:00+14:00",
    ]


@pytest.mark.parametrize(
    "line",
    [
        *("", "* * * *", "60 * * * *", "* * * * * * *", "a * * * *", "5-1 * * * *", "*/0 * * * *", "1,,2 * * * *"),
        *("@every", "@every 5", "@every 1x", "@every 500ms", "@every -5m", "@every 9999d", "@sometimes"),
        *("* * 0 * *", "* * * 13 *", "٣ * * * *", "1_0 * * * *", "* * * * 8"),
    ],
)
def test_a_bad_line_is_refused(line):
    with pytest.raises(ScheduleError):
        read_schedule(line, None)


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../../etc/passwd", "/etc/localtime", "a\0b"])
def test_a_bad_zone_is_refused(zone):
    with pytest.raises(ScheduleError):
        read_schedule("* * * * *", zone)


def test_a_line_that_never_fires_is_found_out():
    for line in ("0 0 30 2 *", "0 0 31 4,6,9,11 *"):
        with pytest.raises(ScheduleError, match="never fires"):
            read_schedule(line, None).next_after(ms("2026-01-01T00:00:00Z"))


def test_the_end_of_time_is_no_crash():
    for moment in (ms("9900-12-31T23:59:59Z"), 1 << 60, -(1 << 60)):
        with pytest.raises(ScheduleError):
            read_schedule("0 0 1 1 *", None).next_after(moment)


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        *(("@every 1s", 1.0), ("@every 4s", 0.25), ("* * * * * *", 1.0), ("* * * * *", 1 / 60)),
        *(("*/15 9-17 * * mon-fri", 36 / 86_400), ("@yearly", 1 / 86_400)),
    ],
)
def test_how_often_a_schedule_fires_on_a_day_on_which_it_does(line, rate):
    assert read_schedule(line, None).firings_per_second == pytest.approx(rate)


def test_missed_firings_of_an_interval_are_left_out_and_its_beat_is_kept():
    every = read_schedule("@every 1m", None)
    assert every.last_until(60_000, 60_010) == 60_000
    assert every.last_until(60_000, 200_000) == 180_000
    assert every.next_after(180_000) == 240_000


field = st.sampled_from(["*", "*/7", "0", "30", "10-20", "5,50"])
line = st.builds(
    lambda second, minute, hour, day, weekday: f"{second} {minute} {hour} {day} * {weekday}",
    field,
    field,
    st.sampled_from(["*", "2", "1-3", "*/2", "0,23"]),
    st.sampled_from(["*", "25", "1-28"]),
    st.sampled_from(["*", "0", "mon-fri"]),
)


@given(line, st.integers(0, 4 * 3600), st.sampled_from(["2026-03-28T23:00:00Z", "2026-10-24T22:00:00Z"]))
def test_the_search_finds_what_a_walk_over_every_second_finds(line, offset_s, start):
    """Around both changes of the clock. The walk knows nothing of skipped times, so those are not compared."""
    schedule = read_schedule(line, BERLIN)
    begin = datetime.fromisoformat(start) + timedelta(seconds=offset_s)
    found = datetime.fromtimestamp(schedule.next_after(int(begin.timestamp() * 1000)) / 1000, UTC)
    zone, every_hour = ZoneInfo(BERLIN), schedule.fields.is_every_hour
    moment = begin
    for _ in range(2 * 3600):
        moment += timedelta(seconds=1)
        wall = moment.astimezone(zone)
        fields = schedule.fields
        if (
            wall.second in fields.seconds
            and wall.minute in fields.minutes
            and wall.hour in fields.hours
            and fields.matches_day(wall)
            and (every_hour or not wall.fold)
        ):
            break
    else:
        assert found > moment or is_skipped(found, zone)
        return
    assert found == moment or (found < moment and is_skipped(found, zone))


def is_skipped(moment, zone):
    """Whether the wall clock was set forward in the hour before."""
    return moment.astimezone(zone).utcoffset() > (moment - timedelta(hours=1)).astimezone(zone).utcoffset()
