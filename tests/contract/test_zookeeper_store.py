"""What is ZooKeeper's own: servers that go away and come back, sessions that expire, access. A real one, each time."""

import asyncio
import contextlib
import logging
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.security import make_digest_acl

from skep.base.errors import StoreUnavailable, VersionConflict
from skep.base.ids import BrokerId
from skep.base.reserved_port import ReservedPort
from skep.metadata.catalog import Catalog
from skep.metadata.metadata_store import Put
from skep.metadata.model import BrokerRecord
from skep.metadata.zookeeper import zookeeper_nodes
from skep.metadata.zookeeper.zookeeper_nodes import FAILURES
from skep.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from skep.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer
from tests.contract.conftest import LONG_SESSION_S, in_event_loop, seen, vanished


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One that the tests of this file stop, kill and start; running again after each."""
    with ZooKeeperServer(tmp_path_factory.mktemp("restarted")) as server:
        yield server


async def missed(watch):
    while not (await anext(watch)).missed:
        pass


async def when_reached(store, key):
    while True:
        try:
            return await store.get(key)
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def expire(store):
    """End a store's session behind its back: a second connection with the same session, closed."""
    identity = store._client.client_id
    thief = KazooClient(store.address.hosts[0], client_id=identity)
    await asyncio.to_thread(thief.start)
    await asyncio.to_thread(thief.stop)
    await asyncio.to_thread(thief.close)


@in_event_loop
async def test_a_session_that_expired_is_reported_and_the_watches_go_on_in_the_next_one(zookeeper_engine):
    async with zookeeper_engine.session() as store, zookeeper_engine.session() as other:
        watch = await store.watch("")
        await store.put_ephemeral("brokers/1", b"first")
        ended = asyncio.ensure_future(store.wait_session_end())
        await expire(store)
        await ended
        await missed(watch)
        assert await other.get("brokers/1") is None
        await store.wait_session_end()
        await store.put_ephemeral("brokers/1", b"second")
        ended = asyncio.ensure_future(store.wait_session_end())
        await other.put("topics/a", b"x")
        await seen(watch, {"topics/a"})
        entry = await other.get("brokers/1")
        assert entry is not None
        assert entry.value == b"second"
        assert not ended.done()
        await expire(store)
        await ended


@in_event_loop
async def test_a_server_that_restarts_costs_no_session_and_no_change_unnoticed(server):
    store = ZooKeeperStore(f"{server.connect}/restarts", session_timeout_s=LONG_SESSION_S)
    await store.open()
    try:
        watch = await store.watch("")
        await store.put_ephemeral("brokers/1", b"x")
        await seen(watch, {"brokers/1"})
        await asyncio.to_thread(server.restart)
        await missed(watch)
        await store.put("topics/a", b"x")
        await seen(watch, {"topics/a"})
        assert set(await store.read_tree("")) == {"brokers/1", "topics/a"}
        ended = asyncio.ensure_future(store.wait_session_end())
        await asyncio.sleep(0)
        assert not ended.done()
        ended.cancel()
    finally:
        await store.close()


@in_event_loop
async def test_calls_to_a_server_that_is_away_are_refused_and_it_is_used_again_when_it_is_back(server, monkeypatch):
    monkeypatch.setattr(zookeeper_nodes, "LONGEST_WAIT_AMONG_MANY_S", 3600.0)
    store = ZooKeeperStore(f"{server.connect}/away", session_timeout_s=2.0)
    await store.open()
    try:
        version = await store.put("a", b"x")
        # The store of a registered broker tries nothing again.
        await store.put_ephemeral("brokers/1", b"x")
        await asyncio.to_thread(server.kill)
        calls = store.get("a"), store.put("a", b"y"), store.put_many([Put("a", b"y")]), store.read_tree("")
        refusals = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(refusal) for refusal in refusals] == [StoreUnavailable] * 4
        assert "ZooKeeper 127.0.0.1:" in str(refusals[0])
        assert "/away" in str(refusals[0])
        # By now kazoo knows of the loss, and a call that the store passes on just then waits for the next connection.
        for call in lambda: store._nodes.put_many([Put("a", b"y")], None), lambda: store._nodes.read_tree(""):
            with pytest.raises(FAILURES):
                await asyncio.to_thread(call)
        await asyncio.to_thread(server.restart)
        assert await when_reached(store, "a") == (b"x", version)
    finally:
        if not server.is_running:
            server.restart()
        await store.close()


@in_event_loop
async def test_a_server_that_hangs_refuses_and_is_used_again_when_it_wakes(server):
    store = ZooKeeperStore(f"{server.connect}/hangs", session_timeout_s=2.0)
    await store.open()
    try:
        version = await store.put("a", b"x")
        await store.put_ephemeral("brokers/1", b"x")
        server.pause()
        with pytest.raises(StoreUnavailable):
            await store.get("a")
        server.resume()
        assert await when_reached(store, "a") == (b"x", version)
    finally:
        server.resume()
        await store.close()


@in_event_loop
async def test_a_server_that_is_away_at_the_start_is_waited_for_and_named(caplog):
    reserved = ReservedPort("127.0.0.1")
    port = reserved.number
    store = ZooKeeperStore(f"zk://127.0.0.1:{port}/skep", connection_timeout_s=1.5)
    with pytest.raises(StoreUnavailable, match=rf"127\.0\.0\.1:{port}/skep did not respond.*connection\.timeout"):
        await store.open()
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"ZooKeeper 127.0.0.1:{port}/skep does not respond yet; trying for 2 s"
    ]
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.get("a")
    reserved.release()


@in_event_loop
async def test_a_server_that_comes_up_while_we_wait_is_used(server):
    await asyncio.to_thread(server.kill)
    store = ZooKeeperStore(f"{server.connect}/later", connection_timeout_s=240.0)
    opening = asyncio.ensure_future(store.open())
    await asyncio.to_thread(server.restart)
    await opening
    assert await store.put("a", b"x") == 1
    await store.close()


@in_event_loop
async def test_a_connection_that_is_lost_before_the_broker_is_registered_is_waited_for(server):
    store = ZooKeeperStore(f"{server.connect}/starting", session_timeout_s=0.5, connection_timeout_s=240.0)
    await store.open()
    try:
        version = await store.put("topics/eggs", b"1")
        server.pause()
        reading = asyncio.ensure_future(store.get("topics/eggs"))
        # Longer than any call of a registered broker waits, so that this one was refused at least once.
        await asyncio.sleep(1.5)
        assert not reading.done()
        server.resume()
        assert await reading == (b"1", version)
    finally:
        server.resume()
        await store.close()


@in_event_loop
async def test_clusters_below_different_nodes_do_not_see_each_other(zookeeper):
    one, two = (ZooKeeperStore(f"{zookeeper.connect}/deep/down/{name}") for name in ("one", "two"))
    await one.open()
    await two.open()
    watch = await two.watch("")
    await one.put("a", b"x")
    await two.put("b", b"x")
    assert (await anext(watch)).keys == {"b"}
    assert set(await two.read_tree("")) == {"b"}
    await one.close()
    await two.close()


@in_event_loop
async def test_a_name_and_a_password_keep_others_out(zookeeper):
    options = {
        "auth_data": [("digest", "skep:secret")],
        "default_acl": [make_digest_acl("skep", "secret", all=True)],
    }
    store = ZooKeeperStore(f"{zookeeper.connect}/private", options=options)
    await store.open()
    await store.put("a", b"x")
    stranger = ZooKeeperStore(f"{zookeeper.connect}/private")
    with pytest.raises(StoreUnavailable, match="denies access to its nodes"):
        await stranger.open()
    friend = ZooKeeperStore(f"{zookeeper.connect}/private", options=options)
    await friend.open()
    assert await friend.get("a") == (b"x", 1)
    await friend.close()
    await store.close()


@in_event_loop
async def test_an_ephemeral_key_whose_answer_was_lost_is_found_to_be_ours(zookeeper_engine):
    async with zookeeper_engine.session() as store:
        await store.put_ephemeral("brokers/1", b"x")
        store._nodes._unconfirmed.add("brokers/1")  # as after a connection that broke before the response
        # A registration is tried again with a new epoch, so with another value.
        version = await store.put_ephemeral("brokers/1", b"y")
        async with zookeeper_engine.session() as other:
            assert await other.get("brokers/1") == (b"y", version)
        with pytest.raises(VersionConflict):
            await store.put_ephemeral("brokers/1", b"z")


@in_event_loop
async def test_a_broker_whose_registration_was_not_answered_registers_again_and_finds_nobody_in_its_way(
    zookeeper, monkeypatch
):
    store = ZooKeeperStore(f"{zookeeper.connect}/unanswered", connection_timeout_s=60.0)
    await store.open()
    try:
        catalog = Catalog(store, BrokerId(1))
        wait, create = store._nodes._wait, store._nodes._create_ephemeral

        def lose_the_answer(request):
            wait(request)
            raise ConnectionLoss

        def create_without_answer(key, value):
            with monkeypatch.context() as losing:
                losing.setattr(store._nodes, "_wait", lose_the_answer)
                return create(key, value)

        monkeypatch.setattr(store._nodes, "_create_ephemeral", create_without_answer)
        # Before a broker is registered, its store tries so long; here it tries in vain.
        monkeypatch.setattr(store, "_connection_timeout_s", 4.0)
        with pytest.raises(StoreUnavailable):
            await catalog.register_broker(BrokerRecord(BrokerId(1), "host", 9092))
        monkeypatch.undo()
        assert await store.get("brokers/1") is not None
        again = await catalog.register_broker(BrokerRecord(BrokerId(1), "host", 9092))
        entry = await store.get("brokers/1")
        assert BrokerRecord.decode(BrokerId(1), entry.value) == again
        await catalog.update_registration(replace(again, stopping=True))
    finally:
        await store.close()


@in_event_loop
async def test_a_doubtful_key_that_another_session_has_is_not_ours(zookeeper_engine):
    async with zookeeper_engine.session() as store, zookeeper_engine.session() as other:
        await other.put_ephemeral("brokers/1", b"theirs")
        store._nodes._unconfirmed.add("brokers/1")
        with pytest.raises(VersionConflict):
            await store.put_ephemeral("brokers/1", b"ours")
        assert (await other.get("brokers/1")).value == b"theirs"


@in_event_loop
async def test_a_value_that_zookeeper_would_not_take_is_refused_by_its_size_and_the_largest_is_taken(zookeeper_engine):
    async with zookeeper_engine.session() as store:
        with pytest.raises(StoreUnavailable, match="topics/a has 1000001 bytes"):
            await store.put("topics/a", b"x" * 1_000_001)
        with pytest.raises(StoreUnavailable, match="topics/a has 1000001 bytes"):
            await store.put_many([Put("topics/b", b"x"), Put("topics/a", b"x" * 1_000_001)])
        await store.put_many([Put("topics/b", b"x"), Put("topics/a", b"x" * 1_000_000), Put("topics/c", b"x")])
        assert set(await store.read_tree("")) == {"topics/a", "topics/b", "topics/c"}


@in_event_loop
async def test_an_ensemble_of_three_goes_on_without_its_leader(tmp_path):
    ensemble = ZooKeeperEnsemble(3, tmp_path)
    await asyncio.to_thread(ensemble.__enter__)
    store = ZooKeeperStore(ensemble.connect, session_timeout_s=LONG_SESSION_S)
    try:
        await store.open()
        watch = await store.watch("")
        version = await store.put("topics/a", b"one")
        await store.put_ephemeral("brokers/1", b"x")
        leader = ensemble.leader()
        assert leader is not None
        await asyncio.to_thread(ensemble.kill, leader)
        while await when_reached(store, "topics/a") == (b"one", version):
            # Whether a refused call took place is unknown until the key is read.
            with contextlib.suppress(StoreUnavailable, VersionConflict):
                await store.put("topics/a", b"two", expected_version=version)
        assert await when_reached(store, "topics/a") == (b"two", version + 1)
        await seen(watch, {"topics/a"})
        assert set(await store.read_tree("")) == {"brokers/1", "topics/a"}
        await store.delete("brokers/1")
        await vanished(store, watch, "brokers/1")
    finally:
        await store.close()
        await asyncio.to_thread(ensemble.stop)
