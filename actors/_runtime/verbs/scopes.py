"""gather, select and scope as the author calls them."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from actors._kernel.json import recordable
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._runtime.replay.branches import Branch, Gather, Group, ScopeGroup, Select, Selected
from actors._runtime.replay.failures import ContinueAsNew
from actors._runtime.verbs.call import Call, RunState, enter_verb
from actors.errors import CancellationError, ContractError, NonDeterminismError

T = TypeVar("T")


class Scopes:
    """The verbs that open branches, of one execution of a run."""

    def __init__(self, run: RunState) -> None:
        self._run = run

    def _enter(self, verb: str, coros: Sequence[Coroutine[Any, Any, Any]]) -> Call:
        with _closing_unless_done(coros):
            call = Call(self._run, verb)
            if verb == "select":
                call.meet((K.SELECT_WON,), verb, None, digest="")
        return call

    async def _await(
        self, group: Group, call: Call, coros: Sequence[Coroutine[Any, Any, Any]]
    ) -> None:
        scheduler = self._run.scheduler
        scheduler.open_group(group)
        for index, coro in enumerate(coros):
            scheduler.add(group, Branch(f"{call.position}.{index}.", coro))
        try:
            await scheduler.group(group, call.verb)
        finally:
            scheduler.groups.close(group)

    async def gather(self, *coros: Coroutine[Any, Any, T]) -> list[T]:
        """Run branches at the same time and return their results in order."""
        call = self._enter("gather", coros)
        group = Gather(call.branch)
        if coros:
            await self._await(group, call, coros)
        if group.failed is not None and group.failed.error is not None:
            raise group.failed.error
        return [child.value for child in group.children]

    async def select(self, *coros: Coroutine[Any, Any, Any]) -> Selected:
        """Run branches at the same time and return the first end; the others are closed."""
        if not coros:
            msg = "ctx.select needs at least one branch"
            raise ContractError(msg)
        call = self._enter("select", coros)
        group = Select(call.branch)
        await self._await(group, call, coros)
        winner = group.winner
        assert winner is not None
        index = group.children.index(winner)
        entry = call.entries.end if call.entries is not None else None
        if entry is None or not self._run.history.is_strict(entry.seq):
            self._run.log.record(K.SELECT_WON, call.position, {"index": index})
        elif entry.payload["index"] != index:
            recorded_call = f"select.won {entry.payload['index']}"
            raise NonDeterminismError(call.position, recorded_call, f"branch {index}")
        if winner.error is not None:
            raise winner.error
        return Selected(index, winner.value)

    def continue_as_new(self, new_input: Any) -> NoReturn:
        """Unwind the run, so that its code starts again with one message."""
        scheduler = self._run.scheduler
        branch = enter_verb(self._run, "continue_as_new")
        if branch is not scheduler.root or branch.groups:
            msg = "ctx.continue_as_new is for the root branch, outside gather, select and scope"
            raise ContractError(msg)
        signal = ContinueAsNew(recordable(new_input, where="continue_as_new"))
        scheduler.unwind(signal)
        raise signal


class BranchHandle(Generic[T]):
    """A branch of a scope: await it for its result, or cancel it."""

    def __init__(self, scope: Scope, branch: Branch) -> None:
        self._scope = scope
        self._branch = branch

    def __await__(self) -> Generator[Any, None, T]:
        return self._scope.join(self._branch).__await__()

    async def cancel(self) -> None:
        """Close the branch; returns when its code has ended."""
        await self._scope.close(self._branch)


class Scope:
    """A block whose branches have all ended when it is left.

    Leaving it waits for all; the first failure closes the others and is raised.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._position = ""
        self._group: ScopeGroup | None = None

    async def __aenter__(self) -> Self:
        call = Call(self._run, "scope")
        self._position = call.position
        self._group = ScopeGroup(call.branch)
        self._run.scheduler.open_group(self._group)
        return self

    def start(self, coro: Coroutine[Any, Any, T]) -> BranchHandle[T]:
        """Add a branch; it begins as soon as this one waits for something."""
        group = self._entered(coro)
        child = Branch(f"{self._position}.{len(group.children)}.", coro)
        self._run.scheduler.add(group, child)
        return BranchHandle(self, child)

    def _entered(self, *coros: Coroutine[Any, Any, Any]) -> ScopeGroup:
        with _closing_unless_done(coros):
            branch = enter_verb(self._run, "scope")
            if self._group is None or self._group.parent is not branch:
                msg = "a scope is used by the branch that opened it, inside its `async with` block"
                raise ContractError(msg)
            return self._group

    async def join(self, branch: Branch) -> Any:
        """Return the branch's result, or raise its error."""
        group = self._entered()
        group.waits_for = branch
        try:
            await self._run.scheduler.group(group, "scope")
        finally:
            group.waits_for = None
        group.joined_branches.add(branch)
        if branch.closed:
            raise CancellationError("this branch of the scope was cancelled")
        if branch.error is not None:
            raise branch.error
        return branch.value

    async def close(self, branch: Branch) -> None:
        """Close one branch and wait for its end."""
        group = self._entered()
        if branch.is_done:
            return
        group.to_close = branch
        try:
            await self._run.scheduler.group(group, "scope")
        finally:
            group.to_close = None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        group = self._group
        if group is None:
            return
        group.close_all = exc is not None
        try:
            await self._run.scheduler.group(group, "scope")
        finally:
            self._run.scheduler.groups.close(group)
            self._group = None
        if exc is None and group.failed is not None and group.failed.error is not None:
            raise group.failed.error


@contextmanager
def _closing_unless_done(coros: Sequence[Coroutine[Any, Any, Any]]) -> Iterator[None]:
    """Close the coroutines if the block raises, so that none is left that was never awaited."""
    try:
        yield
    # Also a cancellation: Python warns of each coroutine that was never awaited.
    except BaseException:
        for coro in coros:
            coro.close()
        raise
