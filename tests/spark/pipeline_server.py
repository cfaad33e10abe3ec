"""Run as a program: runs pipelines one after the other in one Spark, as ``skep pipeline run`` does, for tests.

    pipeline_server.py FOLDER

Each line of standard input is ``{"project": folder, "dry": bool}``, each answer ``{"error": ..., "flows": {...}}``.
Spark takes long to start and can be started once in a process, and the tests' own session is there already. A project
has a database of its own, named like its folder, in a catalog that lives as long as the program.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from skep.cli.failures import CommandError
from skep.cli.spark.pipeline_display import flow_document
from skep.cli.spark.pipeline_progress import Flow, RunProgress
from skep.cli.spark.pipeline_project import load_project
from skep.cli.spark.pipeline_run import Selection, connected, run_graph
from skep.cli.spark.pipeline_template import write_project

OVERRIDES = {
    "spark.sql.catalogImplementation": "in-memory",
    "spark.master": "local[2]",
    # Each flow starts Python workers, and Spark waits ten seconds for one and no longer: too short on a busy machine.
    "spark.sql.pipelines.execution.maxConcurrentFlows": "1",
}


class Silent:
    def note(self, message: str) -> None:
        pass

    def changed(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        pass

    counted = changed


def run(spark: Any, request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["project"])
    progress = RunProgress(Silent(), database=f"spark_catalog.{folder.name}")
    error = None
    try:
        project = dataclasses.replace(load_project(folder, OVERRIDES), database=folder.name)
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {folder.name} LOCATION '{folder}/pipeline-storage/tables'")
        settings = {name: text for name, text in project.settings.items() if not name.startswith("spark.")}
        for name, text in settings.items():
            spark.conf.set(name, text)
        run_graph(project, Selection(dry=request["dry"]), progress, spark, settings)
    except CommandError as refused:
        error = str(refused)
    return {"error": error, "flows": {name: flow_document(flow) for name, flow in progress.flows.items()}}


def main(folder: Path, answers: IO[str]) -> None:
    any_project = load_project(
        write_project(folder / "server", None), {**OVERRIDES, "spark.sql.shuffle.partitions": "2"}
    )
    with (folder / "spark.log").open("wb") as log, connected(any_project, log) as (spark, _):
        for line in sys.stdin:
            print(json.dumps(run(spark, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    # What pipelines print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(Path(sys.argv[1]), answers)
