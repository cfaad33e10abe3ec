"""The tables of a pipeline, for ``skep sql --pipeline``: where their files are, and their rows.

The tables are those of the last run. A sink of the pipeline is another name of its topic. Only a local storage is read,
as by ``skep pipeline show``.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from skep.cli import output
from skep.cli.failures import CommandError
from skep.cli.spark.spark_driver import import_pyspark
from skep.cli.spark.table_files import files_of_table

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class PipelineTables:
    """``folders`` has the folder of each table, ``sinks`` the topic of each sink."""

    folders: dict[str, Path] = field(default_factory=dict)
    sinks: dict[str, str] = field(default_factory=dict)
    bootstrap: str | None = None
    """The broker addresses of the project."""

    @classmethod
    def load(cls, folder: Path) -> "PipelineTables":
        """Raises CommandError if the folder is not a project, or if its storage is not a local folder."""
        import_pyspark()
        from skep.cli.spark.last_run import load_last_run, table_folder
        from skep.cli.spark.pipeline_project import load_project

        project = load_project(folder, {})
        if project.local_storage is None:
            raise CommandError(f"the storage {project.storage} is not a local folder; read its tables with Spark")
        last = load_last_run(project)
        if last is None:
            output.note(f"The pipeline {project.name} has no tables yet; to run it: skep pipeline run {folder}")
        datasets = list(last.graph.datasets.values()) if last is not None else []
        sinks = {one.name: one.topic for one in datasets if one.topic is not None}
        folders = {one.name: table_folder(project, one.name) for one in datasets if one.key == one.name}
        # A view has no folder.
        found = {name: path for name, path in folders.items() if path is not None and path.is_dir()}
        return cls(found, sinks, project.bootstrap)

    def files(self, name: str) -> list[Path]:
        """Returns the files with the rows of a table."""
        try:
            files = files_of_table(self.folders[name])
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from None
        if not files:
            raise CommandError(f"the table {name} has no files yet; run the pipeline again")
        return files

    def arrow_table(self, name: str) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.dataset

        try:
            # One after the other: a table may have got columns since its first files were written.
            parts = [
                pyarrow.dataset.dataset(
                    [str(path)], format="parquet", partitioning="hive", partition_base_dir=str(self.folders[name])
                ).to_table()
                for path in self.files(name)
            ]
            table = pa.concat_tables(parts, promote_options="permissive")
            # Spark's timestamps in Parquet (INT96) are UTC and do not say so.
            instant = pa.timestamp("us", "UTC")
            fields = [field.with_type(instant) if field.type == pa.timestamp("ns") else field for field in table.schema]
            return table.cast(pa.schema(fields), safe=False)
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(name, error) from None

    def _unreadable(self, name: str, error: Exception) -> CommandError:
        return CommandError(f"cannot read the files of {name} in {self.folders[name]}: {' '.join(str(error).split())}")
