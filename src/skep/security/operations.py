"""The numbers of Kafka's ACLs: operations, resource types, pattern types and permissions."""

import enum

CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


class _Number(enum.IntEnum):
    """A number that is a part of the keys of dictionaries."""

    # The hash of an enum's member is computed by Python code, from its name, which takes longer than the lookup.
    __hash__ = int.__hash__


class Operation(_Number):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(_Number):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(enum.IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3
