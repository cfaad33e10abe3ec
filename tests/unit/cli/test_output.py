import pytest

from skep.cli import output


@pytest.mark.parametrize(
    ("amount", "seconds", "shown"),
    [
        (950, 1, "950 B/s"),
        (12_400, 1, "12.4 kB/s"),
        (2_200_000, 2, "1.10 MB/s"),
        (321e6, 1, "321 MB/s"),
        (0, 0, "0 B/s"),
    ],
)
def test_a_rate_has_three_figures(amount: float, seconds: float, shown: str) -> None:
    assert output.rate(amount, seconds, "B") == shown


def test_counts_have_a_plural() -> None:
    assert output.count(1, "record") == "1 record"
    assert output.count(2000, "record") == "2,000 records"


def test_a_table_in_a_pipe_is_neither_cut_nor_coloured(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    long = "x" * 300
    output.table(("topic", "partitions"), [(long, 1), ("[b]y[/b]", None)], right=("partitions",))
    output.flush()
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[0].split() == ["topic", "partitions"]
    assert lines[1] == long + "           1"
    assert lines[2].split() == ["[b]y[/b]", "-"]
    assert not any("\x1b" in line for line in lines)
