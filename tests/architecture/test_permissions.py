"""Every API and every command has its line in the table of permissions."""

from skep.broker.dispatch import HANDLERS
from skep.broker.handlers.skep_command import COMMANDS
from skep.broker.permissions import COMMAND_NEEDS, PERMISSIONS
from skep.security.operations import ResourceType
from skep.wire import apis
from skep.wire.codec import request_class
from skep.wire.entities.entity_fields import fields_of

OPEN = {"ApiVersions", "DescribeCluster", "SaslHandshake", "SaslAuthenticate", "SkepCommand"}
"""The APIs that everybody may send: before authentication, without a secret, or checked by command."""


def test_no_served_api_lacks_a_line() -> None:
    assert HANDLERS.keys() - PERMISSIONS.keys() == set()


def test_a_request_is_checked_by_fields_that_it_has() -> None:
    for key, row in PERMISSIONS.items():
        if (api := apis.SERVED.get(key)) is None:
            continue
        for need in row.request:
            assert (need.field is None) == (need.resource is ResourceType.CLUSTER)
            for version in range(api.oldest, api.newest + 1) if need.field else ():
                assert need.field in {field.name for field in fields_of(request_class(key, version))}


def test_an_api_without_a_need_is_open_on_purpose() -> None:
    free = {
        apis.SERVED[key].name
        for key, row in PERMISSIONS.items()
        if key in apis.SERVED and not (row.request or row.items or row.check)
    }
    assert free <= OPEN


def test_no_command_lacks_a_line() -> None:
    assert COMMANDS.keys() == COMMAND_NEEDS.keys()


def test_a_command_is_checked_by_arguments_that_it_has() -> None:
    for name, needs in COMMAND_NEEDS.items():
        for need in needs:
            assert need.field is None or need.field in COMMANDS[name].arguments
            assert (need.field is None) == (need.resource is ResourceType.CLUSTER)
