"""Users in the metadata store: what is stored, what is looked up, who has to log in again."""

import asyncio
import json

import pytest

from skep.base.config.security_config import SecurityConfig
from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.base.secret import Secret
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import SECRETS, USERS, ClusterImage
from skep.metadata.sqlite.sqlite_store import SqliteStore
from skep.security import users as users_module
from skep.security.users import (
    Users,
    alter_user,
    credentials_of,
    ensure_first_user,
    ensure_secret,
    scram_fields,
    users_with_revoked_credentials,
)
from skep.wire.sasl import scram_keys
from skep.wire.sasl.scram_keys import SCRAM_SHA_256, SCRAM_SHA_512

ALICE = credentials_of(Secret("pencil"))


def fields_of(password: str, scram=SCRAM_SHA_256, salt: bytes = b"salt", iterations: int = 4096):
    return scram_fields(scram, salt, iterations, scram_keys.salted_password(scram, password, salt, iterations))


def image_with(**users) -> ClusterImage:
    return ClusterImage.of("c", (), (), entries={USERS: users, SECRETS: {"unknown-users": {"key": "c2VjcmV0"}}})


@pytest.fixture
def with_catalog(tmp_path):
    def run(work):
        async def inside():
            store = SqliteStore(tmp_path / "metadata.sqlite")
            await store.open()
            catalog = Catalog(store)
            await catalog.open()
            try:
                return await work(catalog)
            finally:
                await catalog.close()
                await store.close()

        return asyncio.run(inside())

    return run


def test_no_password_is_stored_and_each_mechanism_finds_its_credential():
    assert "pencil" not in json.dumps(ALICE)
    users = Users(lambda: image_with(alice=ALICE))
    assert users.password_hash("alice").matches(Secret("pencil"))
    assert not users.password_hash("alice").matches(Secret("Pencil"))
    assert users.password_hash("nobody") is None
    for scram in (SCRAM_SHA_256, SCRAM_SHA_512):
        found = users.scram_credential(scram, "alice")
        assert found.is_known
        salted = scram_keys.salted_password(scram, "pencil", found.credential.salt, found.credential.iterations)
        assert scram_keys.keys_of(scram, salted) == found.credential.keys


def test_a_user_that_does_not_exist_has_a_credential_that_stays_and_does_not_stand_out():
    image = image_with(
        alice={"SCRAM-SHA-256": fields_of("a", salt=b"x" * 20, iterations=5000)},
        bob={"SCRAM-SHA-256": fields_of("b", salt=b"y" * 20, iterations=5000)},
        carol={"SCRAM-SHA-256": fields_of("c")},
    )
    ghost = Users(lambda: image).scram_credential(SCRAM_SHA_256, "ghost")
    assert not ghost.is_known
    assert (ghost.credential.iterations, len(ghost.credential.salt)) == (5000, 20)
    assert len(ghost.credential.keys.stored_key) == 32
    assert Users(lambda: image).scram_credential(SCRAM_SHA_256, "ghost") == ghost
    others = [
        Users(lambda: image).scram_credential(SCRAM_SHA_256, "ghost2"),
        Users(lambda: image).scram_credential(SCRAM_SHA_512, "ghost"),
        Users(lambda: ClusterImage.of("c", (), ())).scram_credential(SCRAM_SHA_256, "ghost"),
    ]
    assert len({one.credential.salt for one in [ghost, *others]}) == 4


def test_a_lookup_does_the_same_work_for_users_that_exist_and_that_do_not(monkeypatch):
    calls = []
    made_up_bytes = scram_keys.made_up_bytes

    def counted(*args):
        calls.append(args[2].partition(" ")[0])
        return made_up_bytes(*args)

    monkeypatch.setattr(users_module.scram_keys, "made_up_bytes", counted)
    users = Users(lambda: image_with(alice=ALICE))
    users.scram_credential(SCRAM_SHA_256, "alice")
    known, calls[:] = list(calls), []
    users.scram_credential(SCRAM_SHA_256, "ghost")
    assert calls == known == ["salt", "key"]


def test_credentials_are_set_and_removed_together(with_catalog):
    async def work(catalog):
        await alter_user(catalog, "alice", {"SCRAM-SHA-256": fields_of("a"), "PLAIN": ALICE["PLAIN"]})
        assert set(catalog.image.entries_of(USERS)["alice"]) == {"SCRAM-SHA-256", "PLAIN"}
        with pytest.raises(KafkaError) as caught:
            await alter_user(catalog, "alice", {"SCRAM-SHA-256": None, "SCRAM-SHA-512": None})
        assert caught.value.code is ErrorCode.resource_not_found
        assert set(catalog.image.entries_of(USERS)["alice"]) == {"SCRAM-SHA-256", "PLAIN"}
        await alter_user(catalog, "alice", {"SCRAM-SHA-256": None, "PLAIN": None})
        assert catalog.image.entries_of(USERS) == {}

    with_catalog(work)


@pytest.mark.parametrize("name", ["", "a" * 256, "a\0b", "a\nb"])
def test_a_name_that_no_user_can_have_is_refused(with_catalog, name):
    with pytest.raises(KafkaError) as caught:
        with_catalog(lambda catalog: alter_user(catalog, name, ALICE))
    assert caught.value.code is ErrorCode.unacceptable_credential


def test_there_is_a_most_of_users(with_catalog, monkeypatch):
    monkeypatch.setattr(users_module, "MAX_USERS", 1)

    async def work(catalog):
        await alter_user(catalog, "alice", ALICE)
        await alter_user(catalog, "alice", ALICE)
        with pytest.raises(KafkaError, match="1 users already"):
            await alter_user(catalog, "bob", ALICE)

    with_catalog(work)


def first_user(name, path) -> SecurityConfig:
    return SecurityConfig(first_user=name, first_user_password_file=str(path))


def test_the_first_user_is_created_once(with_catalog, tmp_path):
    (tmp_path / "password").write_text("pencil\n")

    async def work(catalog):
        await ensure_first_user(catalog, first_user("admin", tmp_path / "password"))
        stored = catalog.image.entries_of(USERS)["admin"]
        assert set(stored) == {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
        assert Users(lambda: catalog.image).password_hash("admin").matches(Secret("pencil"))
        await ensure_first_user(catalog, first_user("admin", "/nowhere"))
        assert catalog.image.entries_of(USERS)["admin"] == stored
        await ensure_first_user(catalog, SecurityConfig())

    with_catalog(work)


@pytest.mark.parametrize(
    ("name", "path", "complaint"),
    [
        ("admin", "", "belong together"),
        ("", "/nowhere", "belong together"),
        ("admin", "/nowhere", "skep.first.user.password.file /nowhere: No such file"),
        ("admin", "/dev/null", "skep.first.user.password.file /dev/null: it is empty"),
        ("a" * 300, "/nowhere", "skep.first.user: Username is longer than 255 bytes"),
    ],
)
def test_a_first_user_that_cannot_be_is_told(with_catalog, name, path, complaint):
    with pytest.raises(OptionError, match=complaint):
        with_catalog(lambda catalog: ensure_first_user(catalog, first_user(name, path)))


def test_the_secret_of_unknown_users_is_made_once(with_catalog):
    async def work(catalog):
        await ensure_secret(catalog)
        secret = catalog.image.entries_of(SECRETS)["unknown-users"]
        await ensure_secret(catalog)
        assert catalog.image.entries_of(SECRETS)["unknown-users"] == secret
        assert len(secret["key"]) == 44

    with_catalog(work)


def test_who_lost_a_credential_has_to_log_in_again():
    before = image_with(alice=ALICE, bob=ALICE, carol=ALICE, dave={"PLAIN": ALICE["PLAIN"]})
    after = image_with(
        alice=ALICE, bob={**ALICE, "PLAIN": credentials_of(Secret("x"))["PLAIN"]}, dave=ALICE, erin=ALICE
    )
    assert users_with_revoked_credentials(before, after) == {"bob", "carol"}
    assert users_with_revoked_credentials(before, before) == set()
