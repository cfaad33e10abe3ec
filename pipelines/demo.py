"""A demo in one command: it starts a broker, generates clicks, runs the clickstream pipeline and shows the results.

    python -m pipelines.demo [--clicks 100000] [--rounds 1] [--keep]

The broker runs on a free port with its data in a temporary folder. The pipeline of ``pipelines/clickstream`` runs over
the clicks round by round, as cron would run it. Then the demo shows the content of the topics and of the Parquet files,
the largest first. The folder is deleted at the end, unless ``--keep`` is given.
"""

import argparse
import datetime
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.dataset
from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from skep.testing import EmbeddedBroker

CLICKSTREAM = Path(__file__).parent / "clickstream"
USERS = ("ada", "bob", "cid", "dora", "eve", "finn", "gus", "hal")
PAGES = ("home", "products", "basket", "paid", "help", "returns")
POPULARITY = (35, 30, 15, 9, 8, 3)
START = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)
ROUND = datetime.timedelta(hours=12)
SHOWN_ROWS = 5
BAR_WIDTH = 40
END_TIMEOUT_S = 60.0
# In a Spark run of one minute, the optimizing compiler uses half of the CPU time, for loops that end before it is done.
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
console = Console()


def clicks(count: int, start: datetime.datetime, seed: int) -> list[tuple[str, dict[str, str]]]:
    """Returns ``count`` clicks of twelve hours, in order of their times.

    They belong to visits of some minutes. A user is away for longer than the five minutes that end a visit.
    """
    dice = random.Random(seed)
    found: list[tuple[datetime.datetime, str]] = []
    visitors = max(1, count // 200)
    while len(found) < count:
        user = f"{dice.choice(USERS)}-{dice.randrange(visitors)}"
        at = start + ROUND * dice.random()
        for _ in range(1 + int(dice.expovariate(1 / 8))):
            at += datetime.timedelta(seconds=1 + dice.expovariate(1 / 40))
            found.append((at, user))
    found = sorted(found[:count])
    pages = dice.choices(PAGES, POPULARITY, k=count)
    return [
        (user, {"user": user, "page": page, "at": at.isoformat(timespec="milliseconds")})
        for (at, user), page in zip(found, pages, strict=True)
    ]


def skep(*arguments: str, text: str | None = None) -> None:
    """Runs a command as a user would, and prints it. Ctrl-C also reaches the command; this waits while it cleans up."""
    console.print(f"[bold]$ skep {' '.join(arguments)}[/bold]", soft_wrap=True)
    environment = {"JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA, **os.environ}
    command = [sys.executable, "-m", "skep.cli.main", *arguments]
    with subprocess.Popen(
        command, stdin=None if text is None else subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            process.communicate(text)
        except KeyboardInterrupt:
            process.wait(END_TIMEOUT_S)
            raise
    if process.returncode:
        raise SystemExit(process.returncode)


def show(title: str, rows: list[dict[str, Any]], largest: str) -> None:
    """Shows the rows with the largest values of a column, with a bar for each."""
    rows = sorted(rows, key=itemgetter(largest), reverse=True)
    shown = f"{SHOWN_ROWS} of {len(rows):,} rows" if len(rows) > SHOWN_ROWS else f"{len(rows)} rows"
    console.print(f"[bold]{title}[/bold] ({shown}, the largest first)")
    table = Table(box=None, header_style="dim")
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if isinstance(rows[0][name], int) else "left")
    table.add_column("", width=BAR_WIDTH)
    for row in rows[:SHOWN_ROWS]:
        cells = [f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()]
        table.add_row(*cells, Bar(rows[0][largest], 0, row[largest], width=BAR_WIDTH, color="green"))
    console.print(table)
    console.print()


def topic(bootstrap: str, name: str) -> list[dict[str, Any]]:
    """Returns the JSON objects in the values of a topic."""
    from skep import read_arrow

    return [json.loads(value) for value in read_arrow(bootstrap, name)["value"].to_pylist()]


def parquet(project: Path, name: str) -> Any:
    return pyarrow.dataset.dataset(project / "pipeline-storage" / "tables" / name, format="parquet").to_table()


def show_results(bootstrap: str, project: Path, sent: int) -> None:
    from skep import read_arrow

    show("The most popular pages, from Parquet top_pages", parquet(project, "top_pages").to_pylist(), "views")
    visits = [
        {"user": visit["user"], "from": _clock(visit["first"]), "to": _clock(visit["last"]), "clicks": visit["clicks"]}
        for visit in topic(bootstrap, "sessions")
    ]
    show("The longest visits, from topic sessions", visits, "clicks")
    minutes = [{**views, "minute": _clock(views["minute"])} for views in topic(bootstrap, "page-views")]
    show("The busiest minutes, from topic page-views", minutes, "views")
    stored = parquet(project, "clicks").num_rows
    console.print(f"{sent:,} clicks were sent, and Parquet clicks has {stored:,} rows: each click once.")
    began = time.monotonic()
    read = read_arrow(bootstrap, "clicks").num_rows
    console.print(f"The topic as an Arrow table in Python: {read:,} rows in {time.monotonic() - began:.2f} s.")
    if stored != sent or read != sent:
        raise SystemExit("This is not what was sent.")


def _clock(moment: str) -> str:
    """Returns ``12:34:56`` of an ISO time."""
    return moment[11:19]


def rounds_of_clicks(rounds: int, count: int) -> Iterator[str]:
    """Yields the lines of each round: the user as the key, and the click."""
    for number in range(rounds):
        yield "".join(f"{user}\t{json.dumps(click)}\n" for user, click in clicks(count, START + number * ROUND, number))


def run(rounds: int, count: int, folder: Path) -> None:
    began = time.monotonic()
    project = Path(
        shutil.copytree(CLICKSTREAM, folder / "clickstream", ignore=shutil.ignore_patterns("pipeline-storage"))
    )
    with EmbeddedBroker(data_dir=folder / "broker") as broker:
        address = ("--bootstrap-server", broker.bootstrap_servers)
        console.print(f"A broker runs on {broker.bootstrap_servers}: started in {time.monotonic() - began:.1f} s.")
        for name in ("clicks", "page-views", "sessions"):
            skep("topics", "create", name, "--partitions", "2", *address)
        for number, lines in enumerate(rounds_of_clicks(rounds, count), 1):
            console.rule("clicks and their pipeline" if rounds == 1 else f"round {number} of {rounds}")
            skep("produce", "clicks", "--key-separator", "\\t", *address, text=lines)
            skep("pipeline", "run", str(project), *address)
        console.rule("results")
        show_results(broker.bootstrap_servers, project, rounds * count)
    console.print(
        f"The demo took {time.monotonic() - began:.0f} s, most of it the start of Spark and of its flows. "
        f"Next: make run, and docs/PIPELINES.md.",
        soft_wrap=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="how often the pipeline runs")
    parser.add_argument("--clicks", type=int, default=100_000, help="how many clicks in a round")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all data")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="skep-demo-"))
    try:
        run(options.rounds, options.clicks, folder)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        if options.keep:
            console.print(f"The data is in {folder}.")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
