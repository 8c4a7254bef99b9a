"""The effects MEMORY_KG_*: facts of a run, a session or all runs. A `KnowledgeGraph` stores the facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from typing_extensions import override

from actors._kernel.runtime.ids import derive_id
from actors._kernel.stores.data import Entity, GraphStore, Relationship
from actors._kernel.workflow.effects import Effect, EffectOutcome, EffectType
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState
from actors.errors import ContractError

SCOPES: Final = ("run", "session", "global")
MEMBER: Final = "kg.member"
"""The type of the edge from a scope to each entity of its facts."""
_DEFAULT_LIMIT: Final = 100
_PARTS: Final = ("subject", "predicate", "object")


@runtime_checkable
class KnowledgeGraph(Protocol):
    """A bridge for MEMORY_KG_*. `owner` is the scope of the facts, such as ``session:s1``.

    A driver may execute an effect again after a crash, so the same assertion must be stored once.
    """

    async def assert_facts(self, owner: str, facts: Sequence[Mapping[str, Any]]) -> list[str]:
        """Store facts (``subject``, ``predicate``, ``object``, and further JSON data); return their ids."""

    async def query_facts(self, owner: str, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the facts with the values that `query` gives for their parts, at most ``limit``."""

    async def resolve(self, owner: str, label: str, *, limit: int) -> list[dict[str, Any]]:
        """Return entities whose name is like `label`, the best first, with ``id``, ``label`` and ``score``."""


class KnowledgeHandlers:
    """The handlers of MEMORY_KG_*.

    Args:
        graph: The bridge.
    """

    def __init__(self, graph: KnowledgeGraph) -> None:
        self._graph = graph

    async def handle(self, run: RunState, effect: Effect) -> EffectOutcome:
        """Return the bridge's answer. A payload that cannot be read fails without another attempt."""
        try:
            return EffectOutcome.completed(await self._answer(run, effect))
        except (ContractError, ValueError) as exc:
            return EffectOutcome.failed(f"{effect.type.value}: {exc}", retryable=False)

    async def _answer(self, run: RunState, effect: Effect) -> dict[str, Any]:
        payload = effect.payload
        owner, limit = _owner(run, payload), _limit(payload)
        if effect.type is EffectType.MEMORY_KG_ASSERT:
            facts = _facts(payload)
            ids = await self._graph.assert_facts(owner, facts)
            return {"ok": True, "assertion_ids": ids, "count": len(ids)}
        if effect.type is EffectType.MEMORY_KG_QUERY:
            items = await self._graph.query_facts(owner, {**payload, "limit": limit})
            return {"ok": True, "items": items, "count": len(items)}
        label = payload.get("label")
        if not isinstance(label, str) or not label.strip():
            raise GraphError("label", "give the name to search for")
        candidates = await self._graph.resolve(owner, label, limit=limit)
        return {"ok": True, "candidates": candidates, "count": len(candidates)}


def _owner(run: RunState, payload: Mapping[str, Any]) -> str:
    scope = payload.get("scope") or "run"
    if scope not in SCOPES:
        raise GraphError("scope", f"{scope!r} is none of {', '.join(SCOPES)}")
    if scope == "global":
        return "global"
    id_ = run.run_id if scope == "run" else run.session_id
    if not id_:
        raise GraphError("scope", "the run has no session. Start it with session_id, or use 'run'")
    return f"{scope}:{id_}"


def _limit(payload: Mapping[str, Any]) -> int:
    limit = payload.get("limit", payload.get("max_results", _DEFAULT_LIMIT))
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise GraphError("limit", f"{limit!r} is no number of at least 1")
    return limit


def _facts(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    assertions = payload.get("assertions")
    if assertions is None and "subject" in payload:
        assertions = [{name: v for name, v in payload.items() if name not in {"scope", "limit"}}]
    facts: list[Any] = assertions if isinstance(assertions, list) else [assertions]
    for index, fact in enumerate(facts):
        path = f"assertions[{index}]"
        if not isinstance(fact, dict):
            raise GraphError(path, "give an object with subject, predicate and object")
        for name in _PARTS:
            if not isinstance(fact.get(name), str) or not fact[name].strip():
                raise GraphError(f"{path}.{name}", "give a text")
    return facts


class GraphStoreKnowledge(KnowledgeGraph):
    """The facts as relationships of a `GraphStore`. A scope has at most 10,000 facts and entities.

    Each scope is an entity with an edge to all entities of its facts. Names of entities are compared regardless
    of case and of spaces around them.

    Args:
        store: The graph.
    """

    def __init__(self, store: GraphStore) -> None:
        self._store = store

    @override
    async def assert_facts(self, owner: str, facts: Sequence[Mapping[str, Any]]) -> list[str]:
        await self._store.add_entity(Entity(id=_root(owner), type="kg.scope"))
        return [await self._store_fact(owner, fact) for fact in facts]

    @override
    async def query_facts(self, owner: str, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        parts = {name: query[name] for name in _PARTS if query.get(name)}
        entity_name = next((parts[end] for end in ("subject", "object") if end in parts), None)
        start = _root(owner) if entity_name is None else _entity(owner, entity_name)
        types = [parts["predicate"]] if "predicate" in parts else None
        # Without an entity the search begins at the scope: the first step leads to its entities, the second one
        # along their facts.
        if entity_name is None and types is not None:
            types.append(MEMBER)
        depth = 2 if entity_name is None else 1
        neighborhood = await self._store.get_neighbors(start, depth=depth, relationship_types=types)
        items = [
            {"id": edge.id, **edge.properties}
            for edge in neighborhood.relationships
            if edge.type != MEMBER
        ]
        rows = [i for i in items if all(_is_same(i[name], parts[name]) for name in parts)]
        limit: int = query["limit"]
        return sorted(rows, key=lambda row: str(row["id"]))[:limit]

    @override
    async def resolve(self, owner: str, label: str, *, limit: int) -> list[dict[str, Any]]:
        root = _root(owner)
        neighborhood = await self._store.get_neighbors(root, depth=1, relationship_types=[MEMBER])
        rows = []
        for entity in neighborhood.entities:
            name = str(entity.properties.get("label") or "")
            score = _likeness(name, label)
            if entity.id != root and score:
                rows.append({"id": entity.id, "label": name, "score": score})
        return sorted(rows, key=lambda row: (-float(str(row["score"])), str(row["label"])))[:limit]

    async def _store_fact(self, owner: str, fact: Mapping[str, Any]) -> str:
        ends = [_entity(owner, fact[part]) for part in ("subject", "object")]
        for id_, name in zip(ends, (fact["subject"], fact["object"]), strict=True):
            if await self._store.get_entity(id_) is None:
                await self._store.add_entity(
                    Entity(id=id_, type="kg.entity", properties={"label": name.strip()})
                )
            member = Relationship(
                id=derive_id(MEMBER, id_), type=MEMBER, source_id=_root(owner), target_id=id_
            )
            await self._store.add_relationship(member)
        id_ = derive_id("kg", *ends, fact["predicate"])
        relationship = Relationship(
            id=id_,
            type=fact["predicate"],
            source_id=ends[0],
            target_id=ends[1],
            properties=dict(fact),
        )
        await self._store.add_relationship(relationship)
        return id_


def _root(owner: str) -> str:
    return derive_id("kg", owner)


def _entity(owner: str, name: str) -> str:
    return derive_id("kg", owner, name.strip().casefold())


def _is_same(value: Any, expected: Any) -> bool:
    return str(value).strip().casefold() == str(expected).strip().casefold()


def _likeness(name: str, label: str) -> float:
    name, label = name.casefold(), label.strip().casefold()
    if name == label:
        return 1.0
    if label in name or (name and name in label):
        return round(min(len(name), len(label)) / max(len(name), len(label)), 3)
    return 0.0
