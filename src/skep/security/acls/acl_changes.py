"""Creates and deletes ACLs in the metadata store.

The rules of a pattern are one entry, so all that a request changes of a pattern is written at once. A request about
several patterns is several writes: if the store fails in between, the response says which were made.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from skep.base.config.security_config import SecurityConfig
from skep.base.errors import ErrorCode, KafkaError, StoreUnavailable, VersionConflict
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import ACLS, Fields
from skep.security.acls.acl import Acl, ResourcePattern, Rule, check_acl, entry_name, fields_of, rules_of
from skep.security.acls.authorizer import Authorizer

Failure = KafkaError | StoreUnavailable | VersionConflict
Changed = Callable[[str, Any, Any], None]
"""Called with the name of an entry, and its rules before and after."""


class AclChanges(NamedTuple):
    """Changes ACLs. ``changed`` is for the audit."""

    catalog: Catalog
    authorizer: Authorizer
    config: SecurityConfig
    changed: Changed

    async def create(self, acls: Iterable[Acl]) -> dict[Acl, Failure | None]:
        """Returns the failure of each ACL. One that exists already is no failure."""
        results: dict[Acl, Failure | None] = {}
        valid: dict[ResourcePattern, list[Rule]] = {}
        for acl in acls:
            results[acl] = None
            try:
                check_acl(acl)
                valid.setdefault(acl.pattern, []).append(acl.rule)
            except KafkaError as error:
                results[acl] = error
        for pattern, rules in valid.items():
            failure = await self._alter(pattern, functools.partial(self._with, rules))
            results.update((Acl(pattern, rule), failure) for rule in rules)
        return results

    async def delete(self, acls: Iterable[Acl]) -> dict[Acl, Failure | None]:
        """Returns the failure of each ACL. One that does not exist any more is no failure."""
        results: dict[Acl, Failure | None] = {}
        doomed: dict[ResourcePattern, set[Rule]] = {}
        for acl in acls:
            doomed.setdefault(acl.pattern, set()).add(acl.rule)
        for pattern, rules in doomed.items():
            failure = await self._alter(pattern, functools.partial(_without, frozenset(rules)))
            results.update((Acl(pattern, rule), failure) for rule in rules)
        return results

    def _with(self, rules: Iterable[Rule], known: frozenset[Rule]) -> frozenset[Rule]:
        """Raises POLICY_VIOLATION."""
        after = known.union(rules)
        if len(after) > len(known):
            if len(after) > (most := self.config.max_acls_per_resource):
                raise KafkaError(
                    ErrorCode.policy_violation, f"a resource has at most {most} ACLs (skep.max.acls.per.resource)"
                )
            if self.authorizer.index.count + len(after) - len(known) > (most := self.config.max_acls):
                raise KafkaError(ErrorCode.policy_violation, f"the cluster has at most {most} ACLs (skep.max.acls)")
        return after

    async def _alter(
        self, pattern: ResourcePattern, change: Callable[[frozenset[Rule]], frozenset[Rule]]
    ) -> Failure | None:
        before: Fields | None = None

        def edit(fields: Fields | None) -> Fields | None:
            nonlocal before
            before = fields
            return fields_of(change(frozenset(rules_of(fields))))

        name = entry_name(pattern)
        try:
            after = await self.catalog.alter_entry(ACLS, name, edit)
        except (KafkaError, StoreUnavailable, VersionConflict) as error:
            return error
        self.authorizer.follow(self.catalog.image)
        self.changed(name, _shown(before), _shown(after))
        return None


def _without(doomed: frozenset[Rule], known: frozenset[Rule]) -> frozenset[Rule]:
    return known - doomed


def _shown(fields: Fields | None) -> list[str] | None:
    return None if fields is None else [str(rule) for rule in rules_of(fields)]
