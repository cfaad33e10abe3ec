"""A demo in one command: it starts a broker, generates clicks, runs the clickstream pipeline and shows the results.

    python -m pipelines.demo [--rounds 2] [--clicks 2000] [--keep]

The broker runs on a free port with its data in a temporary folder. The pipeline of ``pipelines/clickstream`` runs over
the clicks round by round, as cron would run it. Then the demo shows the content of the topics and of the Parquet files.
The folder is deleted at the end, unless ``--keep`` is given.
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
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pyarrow.dataset
from rich.console import Console
from rich.table import Table

from skep.testing import EmbeddedBroker

CLICKSTREAM = Path(__file__).parent / "clickstream"
USERS = ("ada", "bob", "cid", "dora", "eve", "finn", "gus", "hal")
PAGES = ("home", "home", "home", "products", "products", "basket", "paid")
SHOWN_ROWS = 6
END_TIMEOUT_S = 60.0
# In a Spark run of one minute, the optimizing compiler uses half of the CPU time, for loops that end before it is done.
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
console = Console()


def clicks(count: int, start: datetime.datetime, seed: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the clicks of half an hour, nearly in order: one in ten is up to ninety seconds late."""
    dice = random.Random(seed)
    for number in range(count):
        at = start + datetime.timedelta(minutes=30) * number / count
        if dice.random() < 0.1:
            at -= datetime.timedelta(seconds=dice.uniform(0, 90))
        user = dice.choice(USERS)
        yield user, {"user": user, "page": dice.choice(PAGES), "at": at.isoformat(timespec="milliseconds")}


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


def show(title: str, rows: list[dict[str, object]], total: int) -> None:
    shown = f"the last {len(rows)} of {total:,} rows" if len(rows) < total else f"{total:,} rows"
    console.print(f"[bold]{title}[/bold] ({shown})")
    table = Table(box=None, header_style="dim")
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if isinstance(rows[0][name], int) else "left")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)
    console.print()


def show_results(bootstrap: str, project: Path) -> None:
    from skep import read_arrow

    for topic, order in (("page-views", "minute"), ("sessions", "last")):
        rows = sorted((json.loads(v) for v in read_arrow(bootstrap, topic)["value"].to_pylist()), key=itemgetter(order))
        show(f"topic {topic}", rows[-SHOWN_ROWS:], len(rows))
    for name, order in (("page_views", "minute"), ("sessions", "last"), ("top_pages", "views")):
        files = pyarrow.dataset.dataset(project / "pipeline-storage" / "tables" / name, format="parquet")
        rows = sorted(files.to_table().to_pylist(), key=itemgetter(order))
        show(f"Parquet {name}", rows[-SHOWN_ROWS:], len(rows))


def run(rounds: int, count: int, folder: Path) -> None:
    project = Path(
        shutil.copytree(CLICKSTREAM, folder / "clickstream", ignore=shutil.ignore_patterns("pipeline-storage"))
    )
    with EmbeddedBroker(data_dir=folder / "broker") as broker:
        address = ("--bootstrap-server", broker.bootstrap_servers)
        console.print(f"A broker runs on {broker.bootstrap_servers}.")
        for topic in ("clicks", "page-views", "sessions"):
            skep("topics", "create", topic, "--partitions", "2", *address)
        start = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
        for number in range(rounds):
            lines = "".join(
                f"{user}\t{json.dumps(click)}\n"
                for user, click in clicks(count, start + number * datetime.timedelta(minutes=30), seed=number)
            )
            console.rule(f"round {number + 1} of {rounds}")
            skep("produce", "clicks", "--key-separator", "\\t", *address, text=lines)
            skep("pipeline", "run", str(project), *address)
        console.rule("results")
        show_results(broker.bootstrap_servers, project)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="how often the pipeline runs")
    parser.add_argument("--clicks", type=int, default=2000, help="how many clicks in a round")
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
