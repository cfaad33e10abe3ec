"""The owner of a data directory, and whether the directory may have lost data since it was last used.

``meta.properties`` is Kafka's: version, cluster, broker, and an id of the directory itself. ``boot-id`` has the
kernel's id of the run of the machine in which the directory was last known to be complete. A process that dies loses
nothing that it has written, because the page cache outlives it; a machine that dies does, unless the shutdown was
clean. So::

    meta.properties   boot-id          shutdown    may have lost data
    missing           -                clean, with partitions in it: no, the directory is older than these files
    missing           -                otherwise   yes: the disk is new, or nothing is known about it
    there             missing          any         yes, and the cluster may not know it yet
    there             this run's       any         no
    there             an earlier one   clean       no
    there             an earlier one   not clean   yes

As long as data may be lost there is no ``boot-id``; it is written when the cluster knows about the loss.
"""

import base64
import logging
import os
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from skep.base.errors import StartupError
from skep.base.files.files import Files
from skep.storage.file_names import CLEAN_SHUTDOWN, META_PROPERTIES

logger = logging.getLogger(__name__)

_BOOT_ID_OF_KERNEL = Path("/proc/sys/kernel/random/boot_id")


class DirectoryIdentity(NamedTuple):
    cluster_id: str
    node_id: int
    directory_id: uuid.UUID

    def encode(self) -> bytes:
        identifier = base64.urlsafe_b64encode(self.directory_id.bytes).decode().rstrip("=")
        lines = ["version=1", f"cluster.id={self.cluster_id}", f"node.id={self.node_id}", f"directory.id={identifier}"]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> "DirectoryIdentity":
        """Raises ValueError when the cluster or the broker is missing. Version 0 has no id of the directory."""
        lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
        fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        try:
            cluster_id = fields["cluster.id"].replace("\\", "")
            node_id = int(fields["node.id"] if "node.id" in fields else fields["broker.id"])
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is missing") from error
        try:
            directory_id = uuid.UUID(bytes=base64.urlsafe_b64decode(fields.get("directory.id", "") + "=="))
        except ValueError:
            directory_id = uuid.uuid4()
        return cls(cluster_id, node_id, directory_id)


def claim(files: Files, directory: str, cluster_id: str, node_id: int) -> None:
    """Makes this broker the owner of a directory without one. Raises StartupError when it belongs to another broker."""
    path = os.path.join(directory, META_PROPERTIES)
    if files.exists(path):
        try:
            found = DirectoryIdentity.decode(files.read_whole(path))
        except ValueError as error:
            logger.warning("%s: %s; writing it again", path, error)
        else:
            if (found.cluster_id, found.node_id) != (cluster_id, node_id):
                raise StartupError(
                    f"{directory}: belongs to broker {found.node_id} of cluster {found.cluster_id}, "
                    f"this is broker {node_id} of cluster {cluster_id}"
                )
            return
    files.write_atomically(path, DirectoryIdentity(cluster_id, node_id, uuid.uuid4()).encode())


def may_have_lost_data(names: Collection[str], has_partitions: bool, earlier_boot_id: str | None, boot_id: str) -> bool:
    """Decides by the table above; ``names`` are those in the directory, before anything in it was changed."""
    is_clean = CLEAN_SHUTDOWN in names
    if META_PROPERTIES not in names:
        return not (is_clean and has_partitions)
    return earlier_boot_id is None or (not is_clean and earlier_boot_id != boot_id)


def boot_id_in(files: Files, path: str) -> str | None:
    """Returns the content of the file ``boot-id``; None when there is none."""
    return files.read_whole(path).decode(errors="replace").strip() or None if files.exists(path) else None


def current_boot_id() -> str:
    """Returns the kernel's id of this run of the machine; a new id where the kernel has none."""
    try:
        return _BOOT_ID_OF_KERNEL.read_text().strip()
    except OSError:
        return uuid.uuid4().hex
