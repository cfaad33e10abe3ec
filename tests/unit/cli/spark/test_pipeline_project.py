"""A pipeline's folder: the file that describes it, the settings, the files that define it."""

from pathlib import Path

import pytest

from skep.cli.failures import CommandError, UsageError
from skep.cli.spark.pipeline_commands import init
from skep.cli.spark.pipeline_project import load_project
from skep.cli.spark.pipeline_template import write_project


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


@pytest.mark.parametrize(("name", "folder"), [("my shop", "my-shop"), ("100% #1", "100---1"), ("shop", "shop")])
def test_a_project_of_any_name_is_created_in_a_folder_that_spark_supports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    init(name)
    assert load_project(tmp_path / folder, {}).name == name


@pytest.mark.parametrize("name", ["on", "1.5", "null", 'a "b"', "x: y", "ä"])
def test_the_name_of_a_project_stays_text_in_yaml(tmp_path: Path, name: str) -> None:
    assert load_project(write_project(tmp_path / "shop", None, name), {}).name == name


def test_a_project_is_not_created_where_spark_cannot_keep_its_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my projects").mkdir()
    monkeypatch.chdir(tmp_path / "my projects")
    with pytest.raises(CommandError, match=r"contains ' ', which Spark does not support .* in another folder$"):
        init("shop")
    assert not list(Path().iterdir())


def test_a_project_does_not_replace_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(CommandError, match="already exists"):
        write_project(tmp_path, None)


def test_storage_is_relative_to_the_project_and_holds_the_tables(project: Path) -> None:
    loaded = load_project(project, {})
    assert loaded.storage == f"file://{project}/pipeline-storage"
    assert loaded.settings["spark.sql.warehouse.dir"] == f"{loaded.storage}/tables"


@pytest.mark.parametrize("place", ["a folder", "100%", "a#b"])
def test_storage_whose_path_spark_would_mistake_is_refused_and_another_is_taken(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir()
    project = write_project(tmp_path / place / "shop", None)
    with pytest.raises(CommandError, match=r"^the path of the storage .*/shop/pipeline-storage contains '.',"):
        load_project(project, {})
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("storage: pipeline-storage", f"storage: {tmp_path}/elsewhere"))
    assert load_project(project, {}).storage == f"file://{tmp_path}/elsewhere"


def test_a_project_that_is_only_looked_at_has_its_tables_elsewhere_also_after_a_run(
    project: Path, tmp_path: Path
) -> None:
    (project / "pipeline-storage" / "metastore").mkdir(parents=True)
    looked_at = load_project(project, {}, tmp_path).settings
    assert looked_at["spark.sql.warehouse.dir"] == (tmp_path / "tables").as_uri()
    assert not [name for name, value in looked_at.items() if "pipeline-storage" in value or value == "hive"]


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
        ("just words", "is not a YAML mapping"),
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
