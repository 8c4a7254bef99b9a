"""State that outlives an execution beside results: the agent's key-value state, and patches of a run's code."""

from __future__ import annotations

from typing import Any

from actors.kernel.json import JsonValue, fresh, recordable
from actors.kernel.runtime.commit import DELETED, Deleted
from actors.kernel.runtime.effects import args_hash
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.stores.run_store import RunStore
from actors.kernel.text import check_name_of
from actors.runtime.journal.run_log import reading, refuse_unreadable
from actors.runtime.replay.history import PATCH
from actors.runtime.verbs.call import Call, Payload, RunState, entered


def patched(run: RunState, known: dict[str, bool], patch_id: str) -> bool:
    """See `RunContext.patched`; what this execution knows of its patches is given, and kept."""
    entered(run, "patched")
    check_name_of("id of ctx.patched", patch_id)
    if patch_id not in known:
        position = f"{run.generation_prefix}{PATCH}{patch_id}"
        is_recorded = run.history.places.get(position) is not None
        known[patch_id] = is_recorded or not run.history.is_replaying()
        if known[patch_id] and not is_recorded:
            digest = args_hash(["patched", patch_id])
            payload: Payload = {"effect": "patched", "hash": digest, "status": "ok", "value": True}
            run.log.record(K.EFFECT_RESULT, position, payload)
    return known[patch_id]


class AgentState:
    """Values that outlive the run. Writes ride with the next flush; reads are recorded.

    Between two runs of a serial agent there is no other writer.
    """

    def __init__(self, run: RunState, store: RunStore) -> None:
        self._run = run
        self._store = store
        self._stored: dict[str, JsonValue] = {}
        self._is_whole = False
        self._own: dict[str, JsonValue | Deleted] = {}

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default`; the same on replay."""
        run, call = self._run, Call(self._run, "state.get")
        check_name_of("key of ctx.state.get", key)
        known = call.meet((K.EFFECT_RESULT,), f"state.get {key}", ["get", key])
        value: JsonValue | Deleted
        if known is not None:
            recorded = known.payload.get("value", DELETED)
            is_strict = run.history.is_strict(known.seq)
            if key not in self._own or is_strict or recorded == self._own[key]:
                return default if isinstance(recorded, Deleted) else recorded
        if key in self._own:
            value = self._own[key]
        else:
            if not (key in self._stored or self._is_whole):
                part = await reading(run.log, lambda: self._store.reads.state_at(run.agent_id, key))
                self._stored.update(part.values)
                self._is_whole = part.is_whole
            value = self._stored.get(key, DELETED)
            refuse_unreadable(run.log, value, f"state {key!r} of {run.agent_id}")
        payload = call.returned(None if isinstance(value, Deleted) else value)
        if isinstance(value, Deleted):
            del payload["value"]
        run.log.record(K.EFFECT_RESULT, call.position, payload)
        return default if isinstance(value, Deleted) else fresh(value)

    async def set(self, key: str, value: Any) -> None:
        """Set `key`; part of the run's next commit."""
        clean = recordable(value, where=f"state {str(key)[:60]!r}")
        self._write("state.set", key, clean, ["set", key, clean])

    async def clear(self, key: str) -> None:
        """Remove `key`; part of the run's next commit."""
        self._write("state.clear", key, DELETED, ["clear", key])

    def _write(
        self, verb: str, key: str, value: JsonValue | Deleted, words: list[JsonValue]
    ) -> None:
        run, call = self._run, Call(self._run, verb)
        check_name_of(f"key of ctx.{verb}", key)
        known = call.meet((K.STATE_SET,), f"{verb} {key}", words)
        self._own[key] = value
        found = known.seq if known is not None else -1
        if found > run.history.pool_keys.get(key, -1) and run.history.is_strict(found):
            return  # recorded, and nothing that a failed attempt set came after it
        payload: Payload = {"key": key}
        if isinstance(value, Deleted):
            payload["deleted"] = True
        else:
            payload["value"] = value
        run.log.writes.state[key] = value
        call.record(K.STATE_SET, payload)
