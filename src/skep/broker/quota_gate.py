"""The way of requests to the dispatcher while clients have quotas.

The listener calls the dispatcher itself as long as no quota is set for a user or a client id, so quotas cost nothing
then. With quotas, the gate first finds those of the client, which its connection keeps, and measures:

    Produce: the bytes of the request. The response is sent at once and has the throttle time.
    Fetch and ShareFetch: the bytes of records in the response, which the handlers count. A client that is over its
    quota before it gets any records gets none, at once (KIP-219).
    all requests: the time for which they hold the event loop, for ``request_percentage``; 100 is the whole loop. What a
    request does after it has waited, and in later slices, is not counted. It counts for the next request of the client,
    which is throttled for a second at most, as in Kafka.

A client that is over one of its quotas is muted: its connection takes no further request until the time is over.

Requests that brokers send each other are not throttled: fetches of followers, the APIs in ``FOR_BROKERS`` and some
commands. Anybody can send these, so they also need CLUSTER_ACTION; without an authorizer everybody has it. How fast
replicas are copied is up to ``leader.replication.throttled.rate``. Authentication is not throttled either.
"""

from collections.abc import Awaitable

from skep.base.clock import Clock
from skep.broker.dispatch import Dispatcher
from skep.broker.fetch.follower_fetch import follower_in
from skep.broker.permissions import CLUSTER, CLUSTER_ACTION, COMMAND_NEEDS, Need
from skep.broker.request import AnyRequest, Parts
from skep.security.operations import CLUSTER_NAME
from skep.security.quotas.client_quotas import Throttle
from skep.security.quotas.quotas import Quotas
from skep.wire import apis

AUTHENTICATION = frozenset({apis.SASL_HANDSHAKE.key, apis.SASL_AUTHENTICATE.key})
FOR_BROKERS = frozenset(
    api.key
    for api in (
        apis.WRITE_TXN_MARKERS,
        apis.INITIALIZE_SHARE_GROUP_STATE,
        apis.READ_SHARE_GROUP_STATE,
        apis.WRITE_SHARE_GROUP_STATE,
        apis.DELETE_SHARE_GROUP_STATE,
        apis.READ_SHARE_GROUP_STATE_SUMMARY,
    )
)
COMMANDS_FOR_BROKERS = frozenset(
    command for command, needs in COMMAND_NEEDS.items() if Need(CLUSTER_ACTION, CLUSTER) in needs
)
LONGEST_REQUEST_WAIT_S = 1.0
"""For a client over its share of the time."""


class QuotaGate:
    """Owns nothing: what clients have used is in ``Quotas``, what applies to a client is kept by its connection."""

    def __init__(self, dispatcher: Dispatcher, quotas: Quotas, clock: Clock) -> None:
        self._handle = dispatcher.handle
        self._quotas = quotas
        self._clock = clock

    def handle(self, request: AnyRequest) -> Parts | Awaitable[Parts]:
        """As the dispatcher's. Raises CloseConnection."""
        connection = request.connection
        if connection is None or request.api.key in AUTHENTICATION or _is_from_broker(request):
            return self._handle(request)
        quotas, principal = connection.quotas, request.access.principal
        if quotas is None or not quotas.is_for(self._quotas.version, principal, request.client_id):
            quotas = connection.quotas = self._quotas.of(principal, request.client_id)
        throttle = request.throttle = Throttle(quotas, 0.0)
        before = self._clock.monotonic()
        if request.api is apis.PRODUCE and quotas.producer is not None:
            throttle.wait(quotas.producer.use(request.size, before))
        # A large request may be a follower's fetch.
        if quotas.request is not None and (request.undecoded is None or not _may_be_broker(request)):
            throttle.wait(min(quotas.request.wait_s(before), LONGEST_REQUEST_WAIT_S))
        response = self._handle(request)
        if quotas.request is not None:
            now = self._clock.monotonic()
            quotas.request.use((now - before) * 100, now)
        if throttle.ms:
            connection.mute(throttle.ms / 1000)
        if type(response) is not tuple and isinstance(response, Awaitable):
            return self._finish(request, throttle, throttle.ms, response)
        return response

    async def _finish(
        self, request: AnyRequest, throttle: Throttle, muted_ms: int, response: Awaitable[Parts]
    ) -> Parts:
        parts = await response
        if throttle.ms > muted_ms and request.connection is not None:
            request.connection.mute(throttle.ms / 1000)
        return parts


def _is_from_broker(request: AnyRequest) -> bool:
    api, body = request.api, request.body
    if api is apis.FETCH:
        claims = body is not None and follower_in(body, request.version) is not None
    elif api is apis.SKEP_COMMAND:
        claims = body is not None and body.command in COMMANDS_FOR_BROKERS
    else:
        claims = api.key in FOR_BROKERS
    return claims and _may_be_broker(request)


def _may_be_broker(request: AnyRequest) -> bool:
    return request.access.allows(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
