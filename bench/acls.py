"""Rows of ACLs: one-record produce and fetch requests of a client whose rights 10,000 ACLs decide, to one without.

The worst case: requests so small that a lookup could be seen. One broker has no authorizer; the other has one, and the
client is no super user, so each request is checked. The ratio is that of the CPU time of a request: 3 % is less than
what other programs on the machine do to rates.
"""

from collections.abc import Callable, Iterator

from bench import frames
from bench.peers import apart, cpu_seconds, create_topic
from bench.raw_client import WINDOW, RawClient
from bench.row import Row, spread, take_turns
from bench.single import PIPELINED, VALUE_BYTES, WARM_UP, Burst
from skep.client.cluster_client import ClusterClient
from skep.security.operations import Operation, PatternType, Permission, ResourceType
from skep.testing import EmbeddedBroker
from skep.wire.apis import CREATE_ACLS, DESCRIBE_ACLS

NAMES = ("acls-produce", "acls-fetch")

TOPIC = "orders-of-many"
PATTERNS, RULES = 2_000, 5
FREE, CHECKED = "without an authorizer", "10,000 ACLs"
WITH_AUTHORIZER = {"authorizer.class.name": "skep", "allow.everyone.if.no.acl.found": "true"}


def measure() -> Iterator[Row]:
    produce = frames.produce(TOPIC, 0, frames.one_record_batch(VALUE_BYTES))
    fetch = frames.fetch(TOPIC, 0, 0, 1)
    with EmbeddedBroker() as free, EmbeddedBroker(options=WITH_AUTHORIZER) as checked:
        brokers = {FREE: free, CHECKED: checked}
        for broker in brokers.values():
            create_topic(broker.bootstrap_servers, TOPIC)
        _create_acls(checked.bootstrap_servers)
        with (
            RawClient(free.bootstrap_servers) as of_free,
            RawClient(checked.bootstrap_servers) as of_checked,
            apart(free.pid, checked.pid),
        ):
            clients = {FREE: of_free, CHECKED: of_checked}
            for name, request in (("acls-produce", produce), ("acls-fetch", fetch)):
                yield _row(name, clients, {who: broker.pid for who, broker in brokers.items()}, request)


def _row(name: str, clients: dict[str, RawClient], pids: dict[str, int], request: bytes) -> Row:
    sizes = {who: len(client.ask(request)) for who, client in clients.items()}
    if len(set(sizes.values())) != 1:
        raise RuntimeError(f"the responses have {sizes} bytes: one of them is a refusal")
    [size] = set(sizes.values())
    for client in clients.values():
        client.pipelined([request], WARM_UP, size)

    def burst(who: str) -> Burst:
        cpu = cpu_seconds(pids[who])
        seconds = clients[who].pipelined([request], PIPELINED, size)
        return Burst(PIPELINED / seconds, (cpu_seconds(pids[who]) - cpu) / PIPELINED * 1e6)

    turns: dict[str, Callable[[], Burst]] = {FREE: lambda: burst(FREE), CHECKED: lambda: burst(CHECKED)}
    results = take_turns(turns, str)
    ours, free = (min(results[who], key=lambda one: one.cpu_us) for who in (CHECKED, FREE))
    return Row(
        name,
        f"one-record {name.removeprefix('acls-')} requests, {WINDOW} in flight, CPU with 10,000 ACLs, to no authorizer",
        0.97,
        "at least",
        free.cpu_us / ours.cpu_us,
        str(ours),
        str(free),
        details={
            "ours": spread([one.rate for one in results[CHECKED]]),
            "reference": spread([one.rate for one in results[FREE]]),
        },
    )


def _create_acls(bootstrap_servers: str) -> None:
    """Half of the patterns are prefixes; one of these and one literal one concern the topic."""
    with ClusterClient(bootstrap_servers) as client:
        [node] = client.nodes()
        for number in range(PATTERNS):
            is_prefix = bool(number % 2)
            name = f"orders-{number}" if number > 1 else TOPIC[: len(TOPIC) - number]
            creations = [
                {
                    "resource_type": ResourceType.TOPIC.value,
                    "resource_name": name,
                    "resource_pattern_type": (PatternType.PREFIXED if is_prefix else PatternType.LITERAL).value,
                    "principal": "User:ANONYMOUS" if rule == 0 else f"User:u{rule}",
                    "host": "*",
                    "operation": Operation.ALL.value,
                    "permission_type": Permission.ALLOW.value,
                }
                for rule in range(RULES)
            ]
            results = client.ask_node(node, CREATE_ACLS, {"creations": creations}).results
            if any(result.error_code for result in results):
                raise RuntimeError(f"an ACL was refused: {results[0].error_message}")
        everything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        nothing: dict[str, object] = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
        found = client.ask_node(node, DESCRIBE_ACLS, everything | nothing)
        if sum(len(one.acls) for one in found.resources) != PATTERNS * RULES:
            raise RuntimeError("there are not as many ACLs as were created")
