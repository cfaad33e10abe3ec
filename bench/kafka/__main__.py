"""``python -m bench.kafka [row ...]``: Skep beside Apache Kafka, one node and three; what ``make bench-kafka`` runs."""

import argparse
import sys
from collections.abc import Sequence

import confluent_kafka

from bench import report
from bench.kafka import single_node, spark_rows, three_nodes
from bench.kafka.nodes import versions
from bench.row import Row

MODULES = (single_node, three_nodes, spark_rows)


def main(arguments: Sequence[str] | None = None) -> int:
    names = [name for module in MODULES for name in module.NAMES]
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description="Skep measured beside Apache Kafka.")
    parser.add_argument("rows", nargs="*", metavar="row", help=f"any of: {', '.join(names)}; all when none is named")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each, after one that is thrown away")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.rows if name not in names]:
        parser.error(f"there is no row {unknown[0]}; there are {', '.join(names)}")
    wanted = set(chosen.rows or names)
    rows: list[Row] = []
    for module in MODULES:
        if wanted & set(module.NAMES):
            rows += module.measure(wanted, chosen.rounds)
    peers = ", ".join([*versions(), f"librdkafka {confluent_kafka.libversion()[0]}"])
    report.print_table(rows, f"Skep beside {peers}; ratios of one run")
    report.write_results(rows, "kafka", "Skep beside Apache Kafka")
    print(f"bench: written to {report.RESULTS}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
