"""The last run of a pipeline: its flows with their numbers, kept in the project's storage for ``graph`` and ``show``.

The file is replaced as a whole, so that a reader never finds half of it. Storage that is not a local folder keeps none.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skep.cli.spark.pipeline_display import flow_document
from skep.cli.spark.pipeline_graph import FlowGraph
from skep.cli.spark.pipeline_progress import Flow
from skep.cli.spark.pipeline_project import Project

FILE = "last-run.json"


@dataclass(frozen=True)
class LastRun:
    """``definitions`` is a digest of the files that define the pipeline, as they were."""

    ended: str
    summary: str
    definitions: str
    graph: FlowGraph
    flows: dict[str, dict[str, Any]]


def save_last_run(project: Project, graph: FlowGraph, flows: Sequence[Flow], summary: str) -> None:
    if (folder := project.local_storage) is None:
        return
    document = {
        "ended": time.strftime("%Y-%m-%d %H:%M:%S"),
        "summary": summary,
        "definitions": digest_of(project),
        "graph": graph.to_json(),
        "flows": [flow_document(flow) for flow in flows],
    }
    temporary = folder / f"{FILE}.new"
    temporary.write_text(json.dumps(document, indent=2))
    os.replace(temporary, folder / FILE)


def load_last_run(project: Project) -> LastRun | None:
    """Returns None if there was no run, or if its file is not one of this version."""
    if (folder := project.local_storage) is None:
        return None
    try:
        document = json.loads((folder / FILE).read_text())
        flows = {flow["flow"]: flow for flow in document["flows"]}
        graph = FlowGraph.from_json(document["graph"])
        return LastRun(document["ended"], document["summary"], document["definitions"], graph, flows)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def digest_of(project: Project) -> str:
    digest = hashlib.sha256()
    for path in project.definitions():
        digest.update(f"{path.relative_to(project.folder)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def table_folder(project: Project, name: str) -> Path | None:
    """Returns the folder of a table's files in the local storage: below ``shop.db`` for ``shop.orders``."""
    folder = project.local_storage
    if folder is None:
        return None
    database, _, table = name.removeprefix("spark_catalog.").rpartition(".")
    database = database or project.database or "default"
    tables = folder / "tables"
    return tables / table if database == "default" else tables / f"{database}.db" / table
