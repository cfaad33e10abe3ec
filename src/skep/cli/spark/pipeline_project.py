"""A pipeline project: its ``spark-pipeline.yml`` and the files that define the pipeline.

The format is Spark's and is read by Spark's own code, with two additions. ``storage`` may be a path relative to the
folder, so that a project can be moved and kept in git. Tables persist between runs without a metastore to install (an
embedded one is in the storage folder), because an incremental run needs the tables of the previous one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skep.cli.failures import CommandError, UsageError
from skep.cli.spark.spark_failures import spark_errors

FILE_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
BOOTSTRAP = "skep.bootstrap"
"""The property that holds the broker addresses for definitions: ``spark.conf.get("skep.bootstrap")``."""

RETRIES = "spark.sql.pipelines.maxFlowRetryAttempts"
"""The property that says how often Spark tries a failed flow again; 2 by default."""

_UNSAFE_IN_PATH = re.compile(r"""[\s%"<>\\^`{|}#?\[\]]""")
"""Characters that Spark's pipelines encode in a path, like %20, and later use as part of the folder's name."""


def unsafe_character(path: str) -> str | None:
    """Returns the first character of ``path`` that storage must not have in its path."""
    found = _UNSAFE_IN_PATH.search(path)
    return None if found is None else found[0]


def safe_name(name: str) -> str:
    """Returns ``my-shop`` for ``my shop``."""
    return _UNSAFE_IN_PATH.sub("-", name.strip())


@dataclass(frozen=True)
class Project:
    """A pipeline that can be run. ``settings`` are Spark properties; the command line overrides the file."""

    folder: Path
    name: str
    storage: str
    catalog: str | None
    database: str | None
    settings: dict[str, str]
    patterns: tuple[str, ...]
    client: dict[str, str] = field(default_factory=dict, repr=False)
    """Properties of clients of the brokers, with the names of librdkafka. They may have secrets."""

    @property
    def bootstrap(self) -> str | None:
        return self.settings.get(BOOTSTRAP)

    @property
    def local_storage(self) -> Path | None:
        """Returns the storage if it is a local folder."""
        return Path(self.storage.removeprefix("file://")) if self.storage.startswith("file://") else None

    def definitions(self) -> list[Path]:
        """Returns the Python and SQL files, sorted. Raises CommandError if there are none, or other files as well."""
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
                raise CommandError(
                    f"{path} is neither .py nor .sql; {', '.join(self.patterns)} must match definition files only"
                )
        return sorted(found)


def load_project(
    folder: Path,
    overrides: Mapping[str, str],
    scratch: Path | None = None,
    client: Mapping[str, str] | None = None,
) -> Project:
    """Loads a project. With ``scratch`` it is only validated: nothing is created in its storage.

    ``client`` are properties of clients of the brokers, with the names of librdkafka.
    """
    from pyspark.pipelines.cli import unpack_pipeline_spec

    path = _spec_of(folder)
    with spark_errors(f"{path}: "):
        spec = unpack_pipeline_spec(_yaml_of(path))
    home = path.parent.resolve()
    # Not as_uri(): Spark and Derby use the path without decoding it.
    storage = spec.storage if "://" in spec.storage else f"file://{home / spec.storage}"
    if found := unsafe_character(storage.removeprefix("file://")):
        raise CommandError(
            f"the path of the storage {storage.removeprefix('file://')} contains {found!r}, with which Spark would "
            f"keep checkpoints in another folder; set another storage in {path}"
        )
    settings = {**_defaults(spec.name, storage, scratch), **spec.configuration, **overrides}
    if settings.get("spark.master", "local").startswith("local"):
        # A single flow uses all cores. Several at a time delay each other's Python workers beyond the ten seconds that
        # Spark waits for them, which is not configurable. Spark 4.3 was also seen to fail with "Illegal size 5 of
        # collection, expected 6" when two flows started at once and changed the same collection; retries do not help.
        settings.setdefault("spark.sql.pipelines.execution.maxConcurrentFlows", "1")
    patterns = tuple(library.include for library in spec.libraries)
    return Project(home, spec.name, storage, spec.catalog, spec.database, settings, patterns, dict(client or {}))


def _spec_of(folder: Path) -> Path:
    if folder.is_file():
        return folder
    found = [folder / name for name in FILE_NAMES if (folder / name).is_file()]
    if not found:
        raise UsageError(f"{folder} has no {FILE_NAMES[0]} (to create a project: skep pipeline init NAME)")
    return found[0]


def _yaml_of(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise CommandError(f"{path} is not a YAML mapping; expected lines like name: VALUE")
    return content


def _defaults(name: str, storage: str, scratch: Path | None) -> dict[str, str]:
    settings = {
        "spark.app.name": name,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.connect.serverStacktrace.enabled": "false",
    }
    root = Path(storage.removeprefix("file://"))
    if scratch is not None:
        # Not the metastore of earlier runs: a definition may be valid only because of a table that they left.
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
