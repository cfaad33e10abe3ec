"""Chooses the metadata store of a broker by the option ``skep.metadata``."""

import os
from pathlib import Path
from typing import Any

from skep.base.config.cluster_config import ClusterConfig
from skep.base.errors import OptionError
from skep.base.extras import how_to_install
from skep.metadata.metadata_store import MetadataStore
from skep.metadata.sqlite.sqlite_store import SqliteStore

METADATA_FILE = "metadata.sqlite"


def store_for(config: ClusterConfig, data_dir: str) -> tuple[MetadataStore, float]:
    """Returns the store, not opened, and for how many seconds it may show a broker that has died."""
    where, timeout_s = config.metadata, config.zookeeper_session_timeout_ms / 1000
    if not where:
        return SqliteStore(Path(data_dir) / METADATA_FILE, session_timeout_s=timeout_s), 0
    if where.startswith("sqlite:"):
        path = Path(os.path.abspath(where.removeprefix("sqlite:")))
        path.parent.mkdir(parents=True, exist_ok=True)
        return SqliteStore(path, session_timeout_s=timeout_s), 0
    if not where.startswith("zk://"):
        raise OptionError(f"skep.metadata={where}: expected sqlite:FILE or zk://HOST:PORT,HOST:PORT/CHROOT")
    try:
        from skep.metadata.zookeeper.zookeeper_store import ZooKeeperStore
    except ModuleNotFoundError as error:
        raise OptionError(
            f"skep.metadata={where}: {error.name} is not installed: {how_to_install('zookeeper')}"
        ) from None
    store = ZooKeeperStore(
        where,
        session_timeout_s=timeout_s,
        connection_timeout_s=config.zookeeper_connection_timeout_ms / 1000,
        options=_client_options(config),
    )
    return store, 2 * timeout_s


def _client_options(config: ClusterConfig) -> dict[str, Any]:
    """Returns the options for kazoo. Options that are not set are left out, so that kazoo's defaults apply."""
    options: dict[str, Any] = {}
    if config.zookeeper_auth:
        from kazoo.security import CREATOR_ALL_ACL

        scheme, _, credential = config.zookeeper_auth.partition(":")
        options["auth_data"] = [(scheme, credential)]
        # Without it, other clients could still write our nodes.
        options["default_acl"] = CREATOR_ALL_ACL
    if config.zookeeper_ssl:
        options["use_ssl"] = True
        options["verify_certs"] = config.zookeeper_verify
        texts = {
            "ca": config.zookeeper_ca,
            "certfile": config.zookeeper_certfile,
            "keyfile": config.zookeeper_keyfile,
            "keyfile_password": config.zookeeper_keyfile_password,
        }
        options.update({name: text for name, text in texts.items() if text})
    return options
