"""Java is looked for before Spark is started, and what to install is said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skep.cli.failures import CommandError
from skep.cli.spark.spark_driver import _causes, _logged_error, check_java, java_version, workers_python


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_the_version_is_read_from_what_java_says(words: str, version: int | None) -> None:
    assert java_version(words) == version


def _java(folder: Path, version: str, modules: str = "java.base@17 jdk.incubator.vector@17", status: int = 0) -> Path:
    """A runtime that says its version and its modules, and does nothing else. ``status`` is that of the modules."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        f"""#!/bin/sh
case $1 in
  --list-modules) printf '%s\\n' {modules}; exit {status} ;;
  *) echo 'openjdk version "{version}"' >&2 ;;
esac
"""
    )
    java.chmod(0o755)
    return folder


def test_without_java_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError) as refused:
        check_java()
    assert str(refused.value) == (
        "Spark needs Java 17 or newer, and no java was found: apt-get install openjdk-17-jre-headless"
    )


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, "11.0.2")))
    with pytest.raises(CommandError, match=r"Java 17 or newer, and .*/bin/java is Java 11: apt-get install"):
        check_java()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(CommandError, match=r"JAVA_HOME=.* has no working java: apt-get install"):
        check_java()


def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, "21.0.1")))
    check_java()


def test_a_java_without_the_module_that_spark_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, "17.0.15", "java.base@17.0.15 java.sql@17.0.15")))
    with pytest.raises(CommandError) as refused:
        check_java()
    assert str(refused.value) == (
        f"Spark needs a full Java runtime, and {tmp_path}/bin/java lacks jdk.incubator.vector: "
        "apt-get install openjdk-17-jre-headless"
    )


@pytest.mark.parametrize(("modules", "status"), [("java.base@17", 1), ("nothing of the kind", 0)])
def test_a_java_that_does_not_tell_its_modules_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: str, status: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, "17.0.15", modules, status)))
    check_java()


def test_python_workers_import_the_installed_pyspark_and_not_the_sources_in_the_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    monkeypatch.delenv("SPARK_HOME", raising=False)
    library = Path(pyspark.__file__).parent / "python" / "lib"
    zips = [str(path) for path in library.glob("*.zip")]
    assert zips
    ours = str(tmp_path / "a folder")
    # Spark says it twice: once for the worker, once for the session.
    path = os.pathsep.join([*zips, "some.jar", *zips, ours])
    python = workers_python(tmp_path / "spark.log")
    printed = "import os, pyspark; print(os.environ['PYTHONPATH'], pyspark.__file__, sep='\\n')"
    ran = subprocess.run([python, "-c", printed], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [f"some.jar{os.pathsep}{ours}", pyspark.__file__]


def test_python_workers_of_a_folder_that_a_shell_reads_otherwise_are_started_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    (tmp_path / "a folder").mkdir()
    assert workers_python(tmp_path / "a folder" / "spark.log") == sys.executable
    assert workers_python(tmp_path / "spark.log") == f"{tmp_path}/spark.python.sh"


def test_python_workers_of_another_spark_are_started_as_that_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert workers_python(tmp_path / "spark.log") == sys.executable


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (
            "2026-01-02 03:04:05 ERROR SparkContext: Error initializing SparkContext.\n"
            "org.apache.spark.SparkException: Could not parse Master URL: 'local[abc]'\n\tat org.apache.spark.X\n",
            "org.apache.spark.SparkException: Could not parse Master URL: 'local[abc]'",
        ),
        (
            "2026-01-02 03:04:05 WARN Client: Failed to connect to master\n"
            "org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
            "2026-01-02 03:05:05 ERROR Backend: All masters are unresponsive! Giving up.\n",
            "Backend: All masters are unresponsive! Giving up.",
        ),
        ("no room\nfor a JVM\n", "for a JVM"),
        ("", None),
    ],
)
def test_the_line_that_says_what_is_wrong_is_found_in_sparks_log(tmp_path: Path, log: str, why: str | None) -> None:
    path = tmp_path / "spark.log"
    path.write_text(log)
    with path.open("rb") as opened:
        assert _logged_error(opened) == why


def test_what_an_error_came_of_is_found_once_also_where_it_is_not_to_be_shown() -> None:
    interrupted, lost, told = KeyboardInterrupt(), OSError(), CommandError("lost")
    lost.__context__ = interrupted
    told.__context__, told.__suppress_context__ = lost, True
    interrupted.__context__ = told
    assert _causes(told) == [told, lost, interrupted]
