import shutil
import subprocess
from pathlib import Path

import pytest

from bench.kafka import maven_jars

DEPENDENCIES = ["org.example:nest:1.2", "org.example:egg_2.13:3.0"]
KEEPS_ARGUMENTS = "mkdir jars && cp pom.xml jars && echo $@ > jars/arguments"
DIES_HALF_WAY = "mkdir jars && touch jars/nest-1.2.jar && exit 1"


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that is found as ``mvn``; a test writes what it does."""
    monkeypatch.setattr(maven_jars, "CACHE", tmp_path / "cache")
    script = tmp_path / "mvn"
    monkeypatch.setattr(shutil, "which", lambda _name: str(script))
    return script


def test_maven_copies_the_dependencies_of_a_pom(maven: Path) -> None:
    write(maven, KEEPS_ARGUMENTS)

    directory = maven_jars.maven_jars("nest", DEPENDENCIES, ["nest", "egg_2.13"])

    assert "dependency:copy-dependencies" in (directory / "arguments").read_text()
    assert "-DincludeArtifactIds=nest,egg_2.13" in (directory / "arguments").read_text()
    pom = (directory / "pom.xml").read_text()
    assert "<groupId>org.example</groupId><artifactId>nest</artifactId><version>1.2</version>" in pom
    assert "<groupId>org.example</groupId><artifactId>egg_2.13</artifactId><version>3.0</version>" in pom


def test_all_artifacts_are_kept_if_none_is_named(maven: Path) -> None:
    write(maven, KEEPS_ARGUMENTS)

    directory = maven_jars.maven_jars("nest", DEPENDENCIES)

    assert "includeArtifactIds" not in (directory / "arguments").read_text()


def test_what_was_downloaded_is_not_downloaded_again(maven: Path) -> None:
    write(maven, KEEPS_ARGUMENTS)
    first = maven_jars.maven_jars("nest", DEPENDENCIES)
    write(maven, "exit 1")

    assert maven_jars.maven_jars("nest", DEPENDENCIES) == first


def test_a_download_that_fails_half_way_leaves_nothing(maven: Path) -> None:
    write(maven, DIES_HALF_WAY)
    with pytest.raises(subprocess.CalledProcessError):
        maven_jars.maven_jars("nest", DEPENDENCIES)
    assert not list(maven_jars.CACHE.iterdir())


def test_without_maven_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven_jars, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(RuntimeError, match=r"download org.example:nest:1.2.*: apt-get install maven"):
        maven_jars.maven_jars("nest", DEPENDENCIES)


def write(script: Path, commands: str) -> None:
    script.write_text(f"#!/bin/sh\n{commands}\n")
    script.chmod(0o755)
