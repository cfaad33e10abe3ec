"""Listeners that other machines reach: topics are not created by a mistyped name, unless somebody has said so."""

import pytest

from skep.base.reserved_port import ReservedPort
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient


@pytest.mark.parametrize(("more", "is_created"), [({}, False), ({"auto.create.topics.enable": "true"}, True)])
def test_other_machines_create_no_topics_by_asking_for_them(more: dict[str, str], is_created: bool) -> None:
    inside, outside = ReservedPort("127.0.0.1"), ReservedPort("127.0.0.1")
    options = {
        "listeners": f"INSIDE://127.0.0.1:{inside.number},OUTSIDE://0.0.0.0:{outside.number}",
        "advertised.listeners": f"OUTSIDE://127.0.0.1:{outside.number}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "skep.insecure": "true",
    }
    try:
        with EmbeddedBroker(options={**options, **more}):
            created = {}
            for name, port in (("outside", outside), ("inside", inside)):
                with RawClient(f"127.0.0.1:{port.number}") as client:
                    response = client.ask(apis.METADATA, 4, topics=[{"name": name}], allow_auto_topic_creation=True)
                    created[name] = bool(response.topics[0].partitions)
                    assert [(one.host, one.port) for one in response.brokers] == [("127.0.0.1", port.number)]
            assert created == {"outside": is_created, "inside": True}
    finally:
        inside.release()
        outside.release()
