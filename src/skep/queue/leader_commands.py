"""Skep's private commands to the leader of a partition: what Kafka's acknowledgements have no field for.

``delay`` sets the reason of a failed delivery and the time of the next one, before the acknowledgement is sent. It
applies to the delivery that the member holds. If it cannot be sent, the record is acknowledged nevertheless, and the
options of the group decide when it is delivered again.

``renew`` keeps records locked while their handlers run. Kafka's protocol can renew too, but librdkafka does not.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient
from skep.client.commands import command_to_leader
from skep.client.errors import ClientError, Unsupported
from skep.client.security.client_security import ClientSecurity
from skep.queue.delivery import Delivery
from skep.queue.message import Outcome

log = logging.getLogger("skep.queue")

TIMEOUT_S = 5.0
DELAY, RENEW = "delay", "renew"
MOST_RENEWED = 1_000
"""With one command."""


class LeaderCommands:
    """Belongs to one lane, and to its thread. Connects when the first command is sent."""

    def __init__(self, client: Mapping[str, Any], group: str) -> None:
        self._client = client
        self._group = group
        self._cluster: ClusterClient | None = None
        self._unsupported: set[str] = set()

    def tell(self, ended: Iterable[Delivery]) -> None:
        """Sends the reasons and delays of the deliveries that have one."""
        for delivery in ended:
            verdict = delivery.verdict
            if verdict is None or verdict.outcome is Outcome.ACCEPT or DELAY in self._unsupported:
                continue
            arguments: dict[str, Any] = {"offset": delivery.message.offset, "text": verdict.reason}
            if verdict.delay_ms is not None:
                arguments["delay_ms"] = verdict.delay_ms
            try:
                self._send(DELAY, delivery.message.topic, delivery.message.partition, arguments)
            except Unsupported as error:
                self._unsupported.add(DELAY)
                log.warning(
                    "the reasons of failed deliveries and the delays of RetryLater could not be sent: %s", error
                )
            except KafkaError as error:
                # If the lock has expired the broker refuses the acknowledgement as well.
                if error.code is not ErrorCode.invalid_record_state:
                    log.warning("the reason and the delay of %s could not be sent: %s", delivery, error)
            except ClientError as error:
                # The others would wait for the same broker, one after the other.
                log.warning(
                    "the reason and the delay of %s, and perhaps of others, could not be sent: %s", delivery, error
                )
                return

    def renew(self, held: Iterable[Delivery]) -> set[Delivery] | None:
        """Locks the records for another while. Returns those that the member does not hold any more; None if the locks
        could not be renewed."""
        if RENEW in self._unsupported:
            return None
        by_partition: dict[tuple[str, int], list[Delivery]] = defaultdict(list)
        for delivery in held:
            by_partition[delivery.message.topic, delivery.message.partition].append(delivery)
        lost: set[Delivery] = set()
        try:
            for place, deliveries in by_partition.items():
                for first in range(0, len(deliveries), MOST_RENEWED):
                    part = deliveries[first : first + MOST_RENEWED]
                    named = [[one.message.offset, one.message.delivery_count] for one in part]
                    offsets = self._send(RENEW, *place, {"deliveries": named})["lost"]
                    lost.update(one for one in part if one.message.offset in offsets)
        except Unsupported as error:
            self._unsupported.add(RENEW)
            log.warning("locks are not renewed: %s", error)
            return None
        except (ClientError, KafkaError) as error:
            log.warning("locks were not renewed: %s", error)
            return None
        return lost

    def _send(self, command: str, topic: str, partition: int, arguments: Mapping[str, Any]) -> Any:
        if self._cluster is None:
            client_id = str(self._client.get("client.id", "skep-queue"))
            self._cluster = ClusterClient(
                self._client["bootstrap.servers"],
                client_id=client_id,
                timeout_s=TIMEOUT_S,
                security=ClientSecurity.of(self._client),
            )
        return command_to_leader(self._cluster, topic, partition, command, {"group": self._group, **arguments})

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
