"""The part of ``kafka-configs`` for users, clients and addresses: their quotas, and with them credentials of users.

Several entity types name one entity, each with the name or the default at the same place: ``--entity-type users
--entity-name alice --entity-type clients --entity-default`` are the clients of alice without a quota of their own.
"""

import argparse
from collections.abc import Mapping, Sequence

from skep.cli import output
from skep.cli.failures import UsageError
from skep.cli.kafka import kafka_users
from skep.cli.kafka.kafka_flags import cluster_from
from skep.cli.quotas.quota_admin import ClientQuota, alter_quotas, describe_quotas
from skep.cli.skep_client import skep_client
from skep.security.quotas.entities import CLIENT_ID, CLIENT_KEYS, IP, IP_KEYS, USER, Entity
from skep.security.quotas.quota_filter import Component, Match

ENTITY_TYPES = {"users": USER, "clients": CLIENT_ID, "ips": IP}
DEFAULT_ENTITY = ""
"""The name that ``--entity-default`` stands for. Kafka's tool has the same, so no user can be called so."""
_SHORT_FLAGS = {"user": "users", "client": "clients", "ip": "ips"}
_SHOWN_TYPES = {USER: "user-principal", CLIENT_ID: "client-id", IP: "ip"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    for flag, plural in _SHORT_FLAGS.items():
        parser.add_argument(f"--{flag}", metavar="NAME", help=f"short for --entity-type {plural} --entity-name")
        parser.add_argument(
            f"--{flag}-defaults", action="store_true", help=f"short for --entity-type {plural} --entity-default"
        )


def are_asked_for(flags: argparse.Namespace) -> bool:
    types, _ = _types_and_names(flags)
    return any(one in ENTITY_TYPES for one in types)


def execute(flags: argparse.Namespace, set_to: Mapping[str, str], unset: Sequence[str]) -> None:
    types, names = _types_and_names(flags)
    others = [f"--{flag}" for flag in ("topic", "broker", "group") if getattr(flags, flag) is not None]
    others += [f"--entity-type {one}" for one in types if one not in ENTITY_TYPES]
    if others or flags.broker_defaults:
        raise UsageError(f"{(*others, '--broker-defaults')[0]} cannot be combined with {', '.join(ENTITY_TYPES)}")
    if len(set(types)) != len(types) or ("ips" in types and len(types) > 1):
        raise UsageError("Only --entity-type users and --entity-type clients can be specified together, each once")
    if len(names) > len(types):
        raise UsageError("there are more entity names than entity types")
    if not flags.alter:
        _describe(flags, types, names)
        return
    if len(names) != len(types):
        raise UsageError("--entity-name or --entity-default must be specified with each --entity-type of --alter")
    if not set_to and not unset:
        raise UsageError("At least one of --add-config, --add-config-file or --delete-config must be specified")
    entity = {ENTITY_TYPES[plural]: name or None for plural, name in zip(types, names, strict=True)}
    scram = {name: text for name, text in set_to.items() if kafka_users.is_scram(name)}
    removed = [name for name in unset if kafka_users.is_scram(name)]
    user = entity.get(USER) if len(entity) == 1 else None
    if (scram or removed) and user is None:
        raise UsageError("SCRAM credentials are those of one user: --entity-type users --entity-name NAME")
    changes = _changes(
        entity, {k: v for k, v in set_to.items() if k not in scram}, [k for k in unset if k not in removed]
    )
    with skep_client(cluster_from(flags)) as client:
        if user is not None:
            kafka_users.alter_credentials(client, user, scram, removed)
        if changes:
            alter_quotas(client, entity, changes)
    first, name = types[0], names[0]
    if name == DEFAULT_ENTITY:
        output.line(f"Completed updating default config for {first} in the cluster.")
    else:
        output.line(f"Completed updating config for {first.removesuffix('s')} {name}.")


def _types_and_names(flags: argparse.Namespace) -> tuple[list[str], list[str]]:
    types, names = list(flags.entity_type or ()), list(flags.entity_name or ())
    for flag, plural in _SHORT_FLAGS.items():
        if (name := getattr(flags, flag)) is not None:
            types.append(plural)
            names.append(name)
    for flag, plural in _SHORT_FLAGS.items():
        if getattr(flags, f"{flag}_defaults"):
            types.append(plural)
            names.append(DEFAULT_ENTITY)
    return types, names


def _changes(entity: Entity, set_to: Mapping[str, str], unset: Sequence[str]) -> dict[str, float | None]:
    known = IP_KEYS if IP in entity else CLIENT_KEYS
    if unknown := [key for key in (*set_to, *unset) if key not in known]:
        raise UsageError(f"{unknown[0]} is no quota of {', '.join(entity)}; there are {', '.join(known)}")
    changes: dict[str, float | None] = dict.fromkeys(unset)
    for key, text in set_to.items():
        try:
            changes[key] = float(text)
        except ValueError:
            raise UsageError(f"Cannot parse quota configuration value for {key}: {text}") from None
    return changes


def _describe(flags: argparse.Namespace, types: Sequence[str], names: Sequence[str]) -> None:
    components = []
    for place, plural in enumerate(types):
        kind = ENTITY_TYPES[plural]
        if place >= len(names):
            components.append(Component(kind, Match.ANY))
        elif names[place] == DEFAULT_ENTITY:
            components.append(Component(kind, Match.DEFAULT))
        else:
            components.append(Component(kind, Match.EXACT, names[place]))
    with skep_client(cluster_from(flags)) as client:
        for quota in describe_quotas(client, components, is_strict=True):
            output.line(quota_row(quota))
        if list(types) == ["users"] and names != [DEFAULT_ENTITY]:
            kafka_users.describe_credentials(client, names[0] if names else None)


def quota_row(quota: ClientQuota) -> str:
    """Returns ``Quota configs for user-principal 'alice' are producer_byte_rate=1024.0``."""
    whom = ", ".join(
        f"the default {_SHOWN_TYPES[kind]}" if name is None else f"{_SHOWN_TYPES[kind]} '{name}'"
        for kind, name in quota.entity.items()
    )
    return f"Quota configs for {whom} are {', '.join(f'{key}={value}' for key, value in quota.values.items())}"
