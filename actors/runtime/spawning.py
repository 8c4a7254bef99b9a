"""ctx.spawn: a child run that is a row of the commit that says it was spawned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from actors.errors import ContractError, OtherTenantError, SpawnDenied
from actors.kernel.agent.agent import Agent
from actors.kernel.agent.message import Message, check_metadata, check_payload_size
from actors.kernel.agent.supervision import HistoryRetention, Supervision
from actors.kernel.json import sized
from actors.kernel.runtime.commit import NewRun, Spawned
from actors.kernel.runtime.effects import args_hash
from actors.kernel.runtime.ids import AgentId, RunId, derive_id, message_id_of_run, run_id_of_child
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.runtime.supervisor import RunHandle
from actors.kernel.text import check_metadata_texts, check_number
from actors.runtime.recorded import raise_if_refused
from actors.runtime.terms import check_policy, check_supervision
from actors.runtime.waits import refusal

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import RunRow
    from actors.kernel.runtime.scheduler import RetryPolicy
    from actors.runtime.branch import Branch
    from actors.runtime.recorder import Recorder

Child: TypeAlias = "Agent | AgentId | str"
"""Who is to run: an agent, its id, or a type whose key is given or drawn from the position."""


def refuse_tenant(what: AgentId, tenant: str) -> None:
    """Return if the agent belongs to the tenant.

    Raises:
        OtherTenantError: It does not.
    """
    if what.tenant != tenant:
        raise OtherTenantError(f"agent {what}", tenant)


class Spawning:
    """The verb that makes children, of one execution of a run."""

    def __init__(self, recorder: Recorder) -> None:
        self._run = recorder

    async def spawn(
        self,
        child: Child,
        boot: Any,
        *,
        key: str | None,
        supervision: Supervision | None,
        priority: int | None,
        retry_policy: RetryPolicy | None,
    ) -> RunHandle:
        """See `RunContext.spawn`."""
        run = self._run
        branch = run.turnstile.enter("spawn")
        position = branch.take_position()
        type_, key = self._named(child, key)
        content = boot.payload if isinstance(boot, Message) else boot
        _check_terms(boot, supervision, priority, retry_policy)
        content, size_bytes = sized(content, where=f"boot message of {type_}")
        digest = args_hash(["spawn", type_, key, content])
        kinds = (EntryKind.CHILD_SPAWNED, EntryKind.EFFECT_RESULT)
        place = run.meet(position, kinds, f"spawn {type_}", digest)
        known = place.result if place is not None else None
        if known is not None:
            raise_if_refused(known.seq, known.payload)
            child_id = RunId(str(known.payload["child"]))
            return RunHandle(child_id, AgentId.parse(str(known.payload["agent"])), run.run_id)
        refused = run.refusals.get(position)
        if refused is not None:
            payload = refusal("spawn", digest, refused)
            raise_if_refused(run.log.record(EntryKind.EFFECT_RESULT, position, payload), payload)
        check_payload_size(size_bytes, what=f"boot message of {type_}")
        if isinstance(boot, Message):
            check_metadata(boot.metadata, what=f"boot message of {type_}")
        n = run.history.sent_at(position)
        agent_id = AgentId(
            type_, key or derive_id("agent", run.run_id, position, n), run.agent_id.tenant
        )
        new = _child_of(run.row, agent_id, f"{position}#{n}" if n else position)
        new = _with_terms(new, run.row, supervision, priority=priority, retry_policy=retry_policy)
        message = None
        if boot is not None:
            message = self._boot(
                agent_id, content, boot, message_id_of_run(run.run_id, position, n)
            )
        handle = self._record(position, digest, new, message)
        await self._counted(branch, position, digest)
        return handle

    def _named(self, child: Child, key: str | None) -> tuple[str, str | None]:
        if isinstance(child, str):
            if key is not None:
                AgentId(child, key)  # refuses a bad name before anything is recorded
            type_ = AgentId(child, "-").type
            agent_id = AgentId(type_, key, self._run.agent_id.tenant) if key is not None else None
        else:
            if key is not None:
                msg = "ctx.spawn takes key= with an agent type, not with an agent, whose id has one"
                raise ContractError(msg)
            agent_id = child if isinstance(child, AgentId) else child.id
            type_, key = agent_id.type, agent_id.key
            refuse_tenant(agent_id, self._run.agent_id.tenant)
        if agent_id == self._run.agent_id:
            msg = (
                f"run {self._run.run_id} of agent {agent_id} cannot spawn a run of its own agent: an "
                "agent is serial, so the child could begin only after its parent's end. Use another "
                "key, ctx.send for work of the next run, or ctx.continue_as_new."
            )
            raise ContractError(msg)
        return type_, key

    def _boot(self, agent_id: AgentId, content: JsonValue, boot: Any, message_id: str) -> Message:
        return Message(
            id=message_id, target=agent_id, payload=content, sender=f"spawn:{self._run.agent_id}",
            created_at=self._run.clock.now(), causation_id=self._run.run_id,
            metadata=(boot.metadata if isinstance(boot, Message) else {}) | self._run.carrier,
        )  # fmt: skip

    def _record(
        self, position: str, digest: str, new: NewRun, message: Message | None
    ) -> RunHandle:
        run = self._run
        payload: dict[str, JsonValue] = {
            "child": new.run_id, "agent": str(new.agent_id), "hash": digest,
            "boot": message.id if message is not None else None,
        }  # fmt: skip
        if new.supervision is not None:
            payload["supervision"] = new.supervision.model_dump(mode="json")
        run.log.record(EntryKind.CHILD_SPAWNED, position, payload)
        if run.spans is not None:
            run.spans.point(
                "spawn", new.agent_id.type, target=str(new.agent_id),
                message_id=message.id if message is not None else None,
                payload=message.payload if message is not None else None,
            )  # fmt: skip
        run.log.spawn(Spawned(new, position, message))
        run.history.children[new.run_id] = str(new.agent_id)
        return RunHandle(new.run_id, new.agent_id, run.run_id)

    async def _counted(self, branch: Branch, position: str, digest: str) -> None:
        """Where effects of other branches execute, know at once whether the budget has a place.

        Else a refusal found later would break them off.
        """
        run = self._run
        if not run.turnstile.working:
            return

        def refused(limit: str) -> dict[str, JsonValue]:
            return refusal("spawn", digest, SpawnDenied(run.run_id, limit))

        seq = run.log.seq
        waiting = run.log.durable_unless_refused(branch, position, refused)
        payload = await run.turnstile.hold(branch, waiting)
        if payload is not None:
            del run.history.children[next(reversed(run.history.children))]
            raise_if_refused(seq, payload)


def _check_terms(
    boot: Any,
    supervision: Supervision | None,
    priority: int | None,
    policy: RetryPolicy | None,
) -> None:
    """Return if a child's terms and its message's texts can be kept.

    Raises:
        ContractError: One of them cannot.
    """
    if isinstance(boot, Message):
        check_metadata_texts(boot.metadata)
    if supervision is not None:
        check_supervision(supervision)
    if priority is not None:
        check_number("priority", priority)
    if policy is not None:
        check_policy(policy)


def _child_of(parent: RunRow, agent_id: AgentId, place: str) -> NewRun:
    return NewRun(
        run_id_of_child(parent.run_id, place), agent_id, parent=parent.run_id,
        root=parent.root or parent.run_id, depth=parent.depth + 1, deadline_at=parent.deadline_at,
        trace=parent.trace,
    )  # fmt: skip


def _with_terms(
    new: NewRun,
    parent: RunRow,
    wanted: Supervision | None,
    *,
    priority: int | None,
    retry_policy: RetryPolicy | None,
) -> NewRun:
    """Return the child with its terms. Budgets are the tree's: the parent's copies count, not new ones."""
    if priority is None and wanted is not None and "priority" in wanted.model_fields_set:
        priority = wanted.priority
    priority = parent.priority if priority is None else priority
    terms = wanted or parent.supervision
    if terms is not None:
        tree = parent.supervision or Supervision(run_id=parent.run_id, root_id=str(new.root))
        terms = terms.model_copy(
            update={
                "run_id": new.run_id, "root_id": new.root, "parent_id": new.parent,
                "depth": new.depth, "priority": priority,
                "session_id": (wanted.session_id if wanted else None) or tree.session_id,
                "spawn_budget": tree.spawn_budget, "execution_budget": tree.execution_budget,
                "retention": wanted.retention if wanted else HistoryRetention.RUN,
            }
        )  # fmt: skip
    return NewRun(
        new.run_id, new.agent_id, priority=priority, retry_policy=retry_policy,
        parent=new.parent, root=new.root, depth=new.depth, deadline_at=new.deadline_at,
        trace=new.trace, supervision=terms,
    )  # fmt: skip
