"""A pipeline's folder: where its ``spark-pipeline.yml`` is, what it says, and which files define the pipeline.

The format is Spark's, read by Spark's own code, with two things made easier: ``storage`` may be a path relative to the
folder, so that a project can be moved and kept in git; and the tables of a pipeline stay there from run to run without
a metastore to install (an embedded one, in the storage folder), because an incremental run needs the tables of the
last one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skep.cli.failures import CommandError, UsageError
from skep.cli.spark.spark_failures import told_in_one_line

FILE_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
BOOTSTRAP = "skep.bootstrap"
"""The setting by which definitions learn where the broker is: ``spark.conf.get("skep.bootstrap")``."""

_MISTAKEN = re.compile(r"""[\s%"<>\\^`{|}#?\[\]]""")
"""What Spark's pipelines write as %20 and the like in a path, and take for the name of a folder a moment later."""


@dataclass(frozen=True)
class Project:
    """A pipeline that can be run. ``settings`` are Spark's, with what the command line said over what the file says."""

    folder: Path
    name: str
    storage: str
    catalog: str | None
    database: str | None
    settings: dict[str, str]
    patterns: tuple[str, ...]

    @property
    def bootstrap(self) -> str | None:
        return self.settings.get(BOOTSTRAP)

    def definitions(self) -> list[Path]:
        """The Python and SQL files, in the order of their names. CommandError when there are none, or others too."""
        found = {
            path
            for pattern in self.patterns
            for path in self.folder.glob(pattern)
            if path.is_file() and "__pycache__" not in path.parts
        }
        if not found:
            raise CommandError(f"{self.folder} has no files that match {', '.join(self.patterns) or 'its libraries'}")
        for path in sorted(found):
            if path.suffix not in (".py", ".sql"):
                raise CommandError(f"{path} is neither .py nor .sql, and all files of {self.patterns[0]} define tables")
        return sorted(found)


def load_project(folder: Path, overrides: Mapping[str, str], scratch: Path | None = None) -> Project:
    """``scratch`` is for a project that is looked at and not run: nothing is made in its storage then."""
    from pyspark.pipelines.cli import unpack_pipeline_spec

    path = _spec_of(folder)
    with told_in_one_line(f"{path}: "):
        spec = unpack_pipeline_spec(_yaml_of(path))
    home = path.parent.resolve()
    # Not as_uri: Spark and Derby take the path as it is.
    storage = spec.storage if "://" in spec.storage else f"file://{home / spec.storage}"
    if found := _MISTAKEN.search(storage.removeprefix("file://")):
        raise CommandError(
            f"the storage {storage.removeprefix('file://')} has {found[0]!r} in its path, and Spark would keep "
            f"checkpoints in another folder: say in {path} where else it may be"
        )
    settings = {**_defaults(spec.name, storage, scratch), **spec.configuration, **overrides}
    if settings.get("spark.master", "local").startswith("local"):
        # A flow uses all cores by itself. Several at a time keep each other's Python workers from starting within the
        # ten seconds that Spark waits, whatever is set; and Spark 4.3 was seen to fail with "Illegal size 5 of
        # collection, expected 6" when two began at once: a collection that both changed, and no retry mends.
        settings.setdefault("spark.sql.pipelines.execution.maxConcurrentFlows", "1")
    patterns = tuple(library.include for library in spec.libraries)
    return Project(home, spec.name, storage, spec.catalog, spec.database, settings, patterns)


def _spec_of(folder: Path) -> Path:
    if folder.is_file():
        return folder
    there = [folder / name for name in FILE_NAMES if (folder / name).is_file()]
    if not there:
        raise UsageError(f"{folder} has no {FILE_NAMES[0]} (make a project with: skep pipeline init NAME)")
    return there[0]


def _yaml_of(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise CommandError(f"{path} does not hold names with values")
    return content


def _defaults(name: str, storage: str, scratch: Path | None) -> dict[str, str]:
    settings = {
        "spark.app.name": name,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.connect.serverStacktrace.enabled": "false",
    }
    root = Path(storage.removeprefix("file://"))
    if scratch is not None and not (root / "metastore").exists():
        # Without tables of earlier runs to be known there is nothing to keep.
        settings["spark.sql.warehouse.dir"] = (scratch / "tables").as_uri()
    elif storage.startswith("file://"):
        settings |= {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": f"{storage}/tables",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={root}/metastore;create=true",
            "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
            "spark.hadoop.hive.metastore.schema.verification": "false",
        }
    return settings
