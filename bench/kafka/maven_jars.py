"""Jars that Maven downloads once: Apache Kafka's, and those of Spark's Kafka connector.

Nothing of them is part of this repository: they are kept in ``bench/.kafka``, which git ignores.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.row import say

CACHE = Path(__file__).parents[1] / ".kafka"

# Spark's POM names a mirror that has to answer before Central is asked. A repository of the same id replaces it.
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>skep.bench</groupId><artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>
  <repositories>
    <repository><id>gcs-maven-central-mirror</id><url>https://repo.maven.apache.org/maven2</url></repository>
  </repositories>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def maven_jars(name: str, dependencies: Sequence[str], only: Sequence[str] = ()) -> Path:
    """The directory ``name`` with the jars of ``dependencies`` (``group:artifact:version``) and of what they need.

    Maven fills the directory if it does not exist. ``only`` are the artifacts to keep, if not all.
    """
    directory = CACHE / name
    if directory.exists():
        return directory
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(f"Maven is needed to download {', '.join(dependencies)}: apt-get install maven")
    say(f"downloading {', '.join(dependencies)}")
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        listed = "\n".join(_DEPENDENCY.format(*one.split(":")) for one in dependencies)
        (Path(work) / "pom.xml").write_text(_POM.format(dependencies=listed))
        command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        command += [f"-DincludeArtifactIds={','.join(only)}"] if only else []
        subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL)
        # Renamed as a whole, so that an interrupted download is not taken for a finished one.
        (Path(work) / "jars").rename(directory)
    return directory
