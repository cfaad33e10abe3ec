"""The output of ``skep cluster describe``: tables for people, a JSON document for scripts."""

from collections.abc import Sequence
from typing import Any

from skep.cli import output
from skep.cli.cluster.cluster_state import BrokerState, ClusterState, PartitionState

SHOWN_TROUBLES = 50
BROKER_COLUMNS = ("broker", "address", "rack", "leads", "replicas", "in sync", "lag", "bytes", "")
TROUBLE_COLUMNS = ("topic", "partition", "leader", "replicas", "isr", "min isr", "lag", "")


def show(state: ClusterState, every: bool) -> None:
    running = sum(broker.address is not None for broker in state.brokers)
    controller = "no controller" if state.controller is None else f"controller {state.controller}"
    output.line(f"cluster {state.cluster_id or '-'}  {output.count(running, 'broker')}  {controller}")
    output.table(
        BROKER_COLUMNS,
        (_broker_row(state, broker) for broker in state.brokers),
        right=("broker", "leads", "replicas", "in sync", "lag", "bytes"),
    )
    output.line()
    troubled = [partition for partition in state.partitions if partition.troubles]
    if not troubled:
        output.line(f"{output.count(len(state.partitions), 'partition')}, all replicas in sync")
        return
    output.alarm(summary(state))
    shown = troubled if every else troubled[:SHOWN_TROUBLES]
    output.table(TROUBLE_COLUMNS, (_trouble_row(state, p) for p in shown), right=TROUBLE_COLUMNS[1:3])
    if len(shown) < len(troubled):
        output.line(f"... and {len(troubled) - len(shown):,} more; show them with --all")


def summary(state: ClusterState) -> str:
    counted = counts(state)
    labels = {
        "under_replicated": "under-replicated",
        "under_min_isr": "under min ISR",
        "offline": "offline",
        "reassigning": "being moved",
    }
    parts = ", ".join(f"{counted[name]:,} {label}" for name, label in labels.items())
    return f"{output.count(counted['total'], 'partition')}: {parts}"


def counts(state: ClusterState) -> dict[str, int]:
    return {
        "total": len(state.partitions),
        "under_replicated": sum(bool(p.behind) for p in state.partitions),
        "under_min_isr": sum(p.is_under_min_isr for p in state.partitions),
        "offline": sum(p.leader is None for p in state.partitions),
        "reassigning": sum(p.move is not None for p in state.partitions),
    }


def _broker_row(state: ClusterState, broker: BrokerState) -> tuple[object, ...]:
    row = _broker_document(state, broker)
    notes = ["controller"] if row["controller"] else []
    if broker.address is None:
        notes.append("not running")
    elif broker.held is None:
        notes.append("no response")
    names = ("id", "address", "rack", "leaders", "replicas", "in_sync", "lag", "bytes")
    return (*(row[name] for name in names), ", ".join(notes))


def _broker_document(state: ClusterState, broker: BrokerState) -> dict[str, Any]:
    return {
        "id": broker.id,
        "address": broker.address,
        "rack": broker.rack,
        "controller": broker.id == state.controller,
        "leaders": state.leaders[broker.id],
        "replicas": sum(broker.id in p.replicas for p in state.partitions),
        "in_sync": sum(broker.id in p.isr for p in state.partitions),
        "lag": state.lag_of(broker),
        "bytes": None if broker.held is None else sum(held.size for held in broker.held.values()),
    }


def _trouble_row(state: ClusterState, partition: PartitionState) -> tuple[object, ...]:
    row = _partition_document(state, partition)
    lags = ", ".join(f"{broker}: {lag}" for broker, lag in row["lag"].items() if lag is not None)
    return (
        *partition.where,
        partition.leader,
        _ids(partition.replicas),
        _ids(partition.isr),
        partition.min_insync,
        lags or None,
        ", ".join(partition.troubles),
    )


def _partition_document(state: ClusterState, partition: PartitionState) -> dict[str, Any]:
    held = {broker.id: broker.held for broker in state.brokers}
    late = [broker for broker in partition.replicas if broker not in partition.isr]
    lags = {}
    for broker in late:
        copy = (held.get(broker) or {}).get(partition.where)
        lags[str(broker)] = None if copy is None else copy.lag
    return {
        "topic": partition.where.topic,
        "partition": partition.where.partition,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "min_insync_replicas": partition.min_insync,
        "lag": lags,
        "adding": list(partition.move.adding) if partition.move else [],
        "removing": list(partition.move.removing) if partition.move else [],
        "troubles": partition.troubles,
    }


def as_document(state: ClusterState) -> dict[str, Any]:
    return {
        "cluster_id": state.cluster_id,
        "controller": state.controller,
        "brokers": [_broker_document(state, broker) for broker in state.brokers],
        "partitions": counts(state),
        "troubled": [_partition_document(state, p) for p in state.partitions if p.troubles],
    }


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))
