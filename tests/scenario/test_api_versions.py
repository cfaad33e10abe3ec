"""ApiVersions: the one API that answers whatever version it is asked in, since it is how clients find out."""

import struct

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient

SOFTWARE = {"client_software_name": "test", "client_software_version": "1.0"}


@pytest.mark.parametrize("version", range(apis.API_VERSIONS.newest + 1))
def test_every_version_lists_the_same_apis(client: RawClient, version: int) -> None:
    response = client.ask(apis.API_VERSIONS, version, **SOFTWARE)
    assert response.error_code is ErrorCode.none
    listed = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert listed.keys() == apis.SERVED.keys() - apis.NOT_ADVERTISED
    assert listed[apis.FETCH.key] == (apis.FETCH.oldest, apis.FETCH.newest)
    # librdkafka sends nothing compressed to a broker that does not say 0 here (KAFKA-18659).
    assert listed[apis.PRODUCE.key] == (0, apis.PRODUCE.newest)


@pytest.mark.parametrize("version", [3, 4])
def test_transactions_v2_and_share_groups_are_finalized_features(client: RawClient, version: int) -> None:
    response = client.ask(apis.API_VERSIONS, version, **SOFTWARE)
    features = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert features == {"transaction.version": 2, "share.version": 2}
    assert response.finalized_features_epoch >= 0
    # A feature with a minimum of 0 makes clients of version 3 fail (KAFKA-17011).
    assert [feature.min_version for feature in response.supported_features] == ([0, 0] if version >= 4 else [])


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_an_unknown_version_is_answered_in_version_0_with_the_list(client: RawClient, version: int) -> None:
    client.send_frame(struct.pack(">hhih", 18, version, 77, -1) + b"\0\1\2whatever it may be")
    frame = client.receive_frame()
    # Header version 0: the correlation id and no tagged fields, then a body whose arrays are of the old kind.
    correlation_id, error, count = struct.unpack_from(">ihi", frame)
    assert (correlation_id, error) == (77, ErrorCode.unsupported_version)
    assert count == len(apis.SERVED) - len(apis.NOT_ADVERTISED)
    assert len(frame) == 10 + 6 * count
    assert client.ask(apis.API_VERSIONS, 0).error_code is ErrorCode.none


def test_the_header_of_a_flexible_response_has_no_tags(client: RawClient) -> None:
    client.send_frame(client.encode(apis.API_VERSIONS, 3, SOFTWARE))
    frame = client.receive_frame()
    # Were there a byte of tags after the correlation id, the error code would begin one later.
    assert struct.unpack_from(">h", frame, 4) == (0,)
    assert frame[6] == len(apis.SERVED) - len(apis.NOT_ADVERTISED) + 1


@pytest.mark.parametrize("name", ["", "-x", "a b", "x\n"])
def test_a_client_name_that_is_no_name_is_refused(client: RawClient, name: str) -> None:
    response = client.ask(apis.API_VERSIONS, 3, client_software_name=name, client_software_version="1")
    assert response.error_code is ErrorCode.invalid_request


def test_a_client_without_an_id_is_served(skep_broker: EmbeddedBroker) -> None:
    for client_id in (None, "", "ключ", "x" * 1000):
        with RawClient(skep_broker.bootstrap_servers, client_id=client_id) as client:
            assert client.ask(apis.API_VERSIONS, 0).error_code is ErrorCode.none
            assert client.ask(apis.METADATA, 12, topics=[]).topics == ()


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (0, 12), (1, 3), (1, 19), (3, 14), (34, 0), (999, 0)])
def test_what_is_not_served_closes_the_connection(skep_broker: EmbeddedBroker, api_key: int, version: int) -> None:
    with RawClient(skep_broker.bootstrap_servers) as client:
        client.send_frame(struct.pack(">hhih", api_key, version, 1, -1) + b"\0" * 20)
        assert client.is_closed()
