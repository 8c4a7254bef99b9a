"""ctx.spawn: a child run that is a row of the commit that says it was spawned."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from actors._kernel.agent.agent import Agent, HistoryRetention, Supervision
from actors._kernel.agent.message import Message, check_metadata, check_payload_size
from actors._kernel.basics import check_number
from actors._kernel.json import sized
from actors._kernel.runtime.commit import Spawned
from actors._kernel.runtime.ids import AgentId, RunId, derive_id, run_id_of_child
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import NewRun, RunRow
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._kernel.runtime.sources import RunHandle
from actors._kernel.text import check_metadata_texts, check_name_of, check_policy
from actors._runtime.replay.failures import raise_if_refused
from actors._runtime.verbs.call import Call, Payload, RunState, refuse_tenant, tell
from actors.errors import ContractError, SpawnDenied

MAX_COUNT: Final = 2**53
"""The greatest number of tokens that a budget counts to."""

Child: TypeAlias = "Agent | AgentId | str"
"""Agent of a child: an agent, its id, or a type whose key is given or drawn from the position."""


class ChildTerms(NamedTuple):
    """A child's terms, as far as its parent sets them; see `RunContext.spawn`."""

    supervision: Supervision | None
    priority: int | None
    retry_policy: RetryPolicy | None
    task_id: str | None = None

    def check(self) -> None:
        """Check that every assembly can keep them.

        Raises:
            ContractError: One of them it cannot.
        """
        if self.supervision is not None:
            check_supervision(self.supervision)
        if self.priority is not None:
            check_number("priority", self.priority)
        if self.retry_policy is not None:
            check_policy(self.retry_policy)
        _check_task(self.task_id)


async def spawn(
    run: RunState, child: Child, boot: Any, *, key: str | None, terms: ChildTerms
) -> RunHandle:
    """Record a child run, which starts when the commit is durable, and return its handle."""
    call = Call(run, "spawn")
    type_, key = _type_and_key(run, child, key)
    content = boot.payload if isinstance(boot, Message) else boot
    if isinstance(boot, Message):
        check_metadata_texts(boot.metadata)
    terms.check()
    what = f"boot message of {type_}"
    content, size_bytes = sized(content, where=what)
    kinds = (K.CHILD_SPAWNED, K.EFFECT_RESULT)
    entry = call.meet(kinds, f"spawn {type_}", ["spawn", type_, key, content])
    if entry is not None:
        raise_if_refused(entry.seq, entry.payload)
        child_id = RunId(str(entry.payload["child"]))
        return RunHandle(child_id, AgentId.parse(str(entry.payload["agent"])), run.run_id)
    refusal = run.refusals.get(call.position)
    if refusal is not None:
        payload = call.refusal(refusal)
        raise_if_refused(call.record(K.EFFECT_RESULT, payload), payload)
    check_payload_size(size_bytes, what=what)
    if isinstance(boot, Message):
        check_metadata(boot.metadata, what=what)
    # A failed attempt may have spawned another child here, which stays: the new one has an id of its own.
    n = run.history.next_number_at(call.position)
    key = key or derive_id("agent", run.run_id, call.position, n)
    agent_id = AgentId(type_, key, run.agent_id.tenant)
    child_run = _child_of(run.row, agent_id, f"{call.position}#{n}" if n else call.position, terms)
    message = None
    if boot is not None:
        message = run.message(
            call.message_id,
            agent_id,
            content,
            sender=f"spawn:{run.agent_id}",
            metadata=boot.metadata if isinstance(boot, Message) else None,
        )
    _record(call, child_run, message)
    await _check_budget(call)
    return RunHandle(child_run.run_id, agent_id, run.run_id)


def _type_and_key(run: RunState, child: Child, key: str | None) -> tuple[str, str | None]:
    if isinstance(child, str):
        if key is not None:
            AgentId(child, key)  # refuses a bad name before anything is recorded
        type_ = AgentId(child, "-").type
        agent_id = AgentId(type_, key, run.agent_id.tenant) if key is not None else None
    else:
        if key is not None:
            msg = "ctx.spawn takes key= with an agent type, not with an agent, whose id has one"
            raise ContractError(msg)
        agent_id = child if isinstance(child, AgentId) else child.id
        type_, key = agent_id.type, agent_id.key
        refuse_tenant(run, agent_id)
    if agent_id == run.agent_id:
        msg = (
            f"run {run.run_id} of agent {agent_id} cannot spawn a run of its own agent: an "
            "agent is serial, so the child could begin only after its parent's end. Use another "
            "key, ctx.send for work of the next run, or ctx.continue_as_new."
        )
        raise ContractError(msg)
    return type_, key


def _record(call: Call, new: NewRun, message: Message | None) -> None:
    run = call.run
    boot = message.id if message is not None else None
    payload: Payload = {"child": new.run_id, "agent": str(new.agent_id), "boot": boot}
    if new.supervision is not None:
        payload["supervision"] = new.supervision.model_dump(mode="json")
    call.record(K.CHILD_SPAWNED, payload)
    tell(run, "spawn", new.agent_id, message)
    run.log.writes.spawned.append(Spawned(new, call.position, message))
    run.history.children[new.run_id] = str(new.agent_id)


async def _check_budget(call: Call) -> None:
    """Check the budget at once if effects of other branches execute.

    Else a refusal found later would break them off.
    """
    run = call.run
    if not run.scheduler.live.working:
        return

    def refuse(limit: str) -> Payload:
        return call.refusal(SpawnDenied(run.run_id, limit))

    seq = run.log.last_seq
    durable_wait = run.log.durable_unless_refused(call.branch, call.position, refuse)
    payload = await run.scheduler.live.hold(call.branch, durable_wait)
    if payload is not None:
        # No other branch runs code while this one is held, so its child is the last one.
        del run.history.children[next(reversed(run.history.children))]
        raise_if_refused(seq, payload)


def _child_of(parent: RunRow, agent_id: AgentId, position: str, child_terms: ChildTerms) -> NewRun:
    """Return the child with its terms. Budgets are the tree's: the parent's copies count, not new ones."""
    run_id, root_id = run_id_of_child(parent.run_id, position), parent.root or parent.run_id
    own_supervision, priority, depth = (
        child_terms.supervision,
        child_terms.priority,
        parent.depth + 1,
    )
    if (
        priority is None
        and own_supervision is not None
        and "priority" in own_supervision.model_fields_set
    ):
        priority = own_supervision.priority
    priority = parent.priority if priority is None else priority
    task_id = child_terms.task_id or (own_supervision.task if own_supervision else None)
    tree_supervision = parent.supervision or Supervision(run_id=parent.run_id, root_id=str(root_id))
    supervision = own_supervision or (parent.supervision if task_id is None else tree_supervision)
    if supervision is not None:
        own_session_id = own_supervision.session_id if own_supervision else None
        supervision = supervision.model_copy(
            update={
                "run_id": run_id,
                "root_id": root_id,
                "parent_id": parent.run_id,
                "depth": depth,
                "priority": priority,
                "task": task_id,
                "session_id": own_session_id or tree_supervision.session_id,
                "spawn_budget": tree_supervision.spawn_budget,
                "execution_budget": tree_supervision.execution_budget,
                "retention": own_supervision.retention if own_supervision else HistoryRetention.RUN,
            }
        )
    return NewRun(
        run_id,
        agent_id,
        priority=priority,
        retry_policy=child_terms.retry_policy,
        parent=parent.run_id,
        root=root_id,
        depth=depth,
        deadline_at=parent.deadline_at,
        trace=parent.trace,
        supervision=supervision,
        parent_agent=parent.agent_id,
    )


def check_supervision(supervision: Supervision) -> None:
    """Check that every assembly can keep these terms.

    Raises:
        ContractError: A text or a number cannot be kept.
    """
    if supervision.session_id is not None:
        check_name_of("session_id", supervision.session_id)
    _check_task(supervision.task)
    check_number("priority", supervision.priority)
    check_number("max_runs of the spawn budget", supervision.spawn_budget.max_runs)
    check_number("max_concurrent of the spawn budget", supervision.spawn_budget.max_concurrent or 0)
    budget = supervision.execution_budget
    check_number("max_turns of the execution budget", budget.max_turns or 0)
    for name, value in (("max_tokens", budget.max_tokens), ("max_cost_usd", budget.max_cost_usd)):
        if value is not None and not value <= MAX_COUNT:
            raise ContractError(
                f"{name} of the execution budget is above {MAX_COUNT}: leave it out"
            )


def _check_task(task_id: str | None) -> None:
    if task_id is not None:
        from actors._kernel.board_rules import check_task_id  # noqa: PLC0415 - most hosts need no boards

        check_task_id(task_id)
