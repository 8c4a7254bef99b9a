"""The agent's durable key-value state, as its runs see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.kernel.json import recordable
from actors.kernel.runtime.commit import DELETED
from actors.kernel.runtime.effects import args_hash
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.text import check_name_of
from actors.runtime.recorder import value_payload

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.recorder import Recorder


class _Absent:
    __slots__ = ()


_ABSENT = _Absent()


class AgentState:
    """Values that outlive the run. Writes ride with the next flush; reads are recorded.

    Between two runs of a serial agent nobody else writes them.
    """

    def __init__(self, recorder: Recorder, store: RunStore) -> None:
        self._run = recorder
        self._store = store
        self._stored: dict[str, JsonValue] | None = None
        self._own: dict[str, JsonValue | _Absent] = {}

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default`; the same on replay."""
        run = self._run
        branch = run.turnstile.enter("state.get")
        position = branch.take_position()
        check_name_of("key of ctx.state.get", key)
        digest = args_hash(["get", key])
        place = run.meet(position, (EntryKind.EFFECT_RESULT,), f"state.get {key}", digest)
        value: JsonValue | _Absent
        if place is not None and place.end is not None:
            recorded = place.end.payload.get("value", _ABSENT)
            is_strict = run.history.is_strict(place.end.seq)
            if key not in self._own or is_strict or recorded == self._own[key]:
                return default if isinstance(recorded, _Absent) else recorded
        if key in self._own:
            value = self._own[key]
        else:
            if self._stored is None:
                self._stored = await run.log.reading(lambda: self._store.state(run.agent_id))
            value = self._stored.get(key, _ABSENT)
        payload = value_payload("state.get", digest, None)
        if isinstance(value, _Absent):
            del payload["value"]
        else:
            payload["value"] = value
        run.log.record(EntryKind.EFFECT_RESULT, position, payload)
        return default if isinstance(value, _Absent) else value

    async def set(self, key: str, value: Any) -> None:
        """Set `key`; part of the run's next commit."""
        clean = recordable(value, where=f"state {str(key)[:60]!r}")
        self._write("state.set", key, clean, ["set", key, clean])

    async def clear(self, key: str) -> None:
        """Remove `key`; part of the run's next commit."""
        self._write("state.clear", key, _ABSENT, ["clear", key])

    def _write(
        self, verb: str, key: str, value: JsonValue | _Absent, words: list[JsonValue]
    ) -> None:
        run = self._run
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        check_name_of(f"key of ctx.{verb}", key)
        digest = args_hash(words)
        place = run.meet(position, (EntryKind.STATE_SET,), f"{verb} {key}", digest)
        self._own[key] = value
        found = place.end.seq if place is not None and place.end is not None else -1
        if found > run.history.pool_keys.get(key, -1) and run.history.is_strict(found):
            return  # recorded, and nothing that a failed attempt set came after it
        payload: dict[str, JsonValue] = {"key": key, "hash": digest}
        if isinstance(value, _Absent):
            payload["deleted"] = True
            run.log.set_state(key, DELETED)
        else:
            payload["value"] = value
            run.log.set_state(key, value)
        run.log.record(EntryKind.STATE_SET, position, payload)
