"""A pipeline's folder: the file that describes it, the settings, the files that define it."""

from pathlib import Path

import pytest

from skep.cli.failures import CommandError, UsageError
from skep.cli.pipeline_spec import load_project
from skep.cli.pipeline_template import write_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path / "shop", None)


def test_a_new_project_is_complete(project: Path) -> None:
    loaded = load_project(project, {})
    assert loaded.name == "shop"
    assert loaded.bootstrap == "127.0.0.1:9092"
    assert [path.name for path in loaded.definitions()] == ["orders.py", "revenue.sql"]
    assert "$name" not in (project / "README.md").read_text()


def test_a_new_project_takes_the_address_of_a_broker(tmp_path: Path) -> None:
    assert load_project(write_project(tmp_path / "shop", "b:9"), {}).bootstrap == "b:9"


def test_a_project_does_not_replace_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(CommandError, match="is there already"):
        write_project(tmp_path, None)


def test_storage_is_relative_to_the_project_and_holds_the_tables(project: Path) -> None:
    loaded = load_project(project, {})
    assert loaded.storage == (project / "pipeline-storage").as_uri()
    assert loaded.settings["spark.sql.warehouse.dir"] == f"{loaded.storage}/tables"


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(project: Path) -> None:
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("configuration:", "configuration:\n  spark.app.name: other"))
    loaded = load_project(project, {"skep.bootstrap": "a:1", "spark.sql.shuffle.partitions": "9"})
    assert loaded.bootstrap == "a:1"
    assert loaded.settings["spark.sql.shuffle.partitions"] == "9"
    assert loaded.settings["spark.app.name"] == "other"


def test_on_one_machine_flows_run_one_after_another(project: Path) -> None:
    name = "spark.sql.pipelines.execution.maxConcurrentFlows"
    assert load_project(project, {}).settings[name] == "1"
    assert load_project(project, {"spark.master": "local[4]", name: "3"}).settings[name] == "3"
    assert name not in load_project(project, {"spark.master": "spark://host:7077"}).settings


def test_storage_elsewhere_keeps_its_own_catalog(project: Path) -> None:
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("storage: pipeline-storage", "storage: s3a://bucket/x"))
    loaded = load_project(project, {})
    assert loaded.storage == "s3a://bucket/x"
    assert "spark.sql.catalogImplementation" not in loaded.settings


def test_a_folder_without_a_pipeline_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="skep pipeline init"):
        load_project(tmp_path, {})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("name: [", "is not YAML"),
        ("just words", "does not hold names with values"),
        ("name: x", "storage"),
        ("name: x\nstorage: y\nlibrarys: []", "librarys"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(content)
    with pytest.raises(CommandError, match=told) as refused:
        load_project(tmp_path, {})
    assert "\n" not in str(refused.value)


def test_a_file_that_defines_nothing_is_refused_by_name(project: Path) -> None:
    (project / "transformations" / "notes.txt").write_text("")
    with pytest.raises(CommandError, match=r"notes\.txt is neither \.py nor \.sql"):
        load_project(project, {}).definitions()


def test_a_project_without_definitions_is_refused(project: Path) -> None:
    for path in (project / "transformations").iterdir():
        path.unlink()
    with pytest.raises(CommandError, match="has no files that match"):
        load_project(project, {}).definitions()
