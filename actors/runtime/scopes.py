"""gather, select and scope as the author calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from actors.errors import CancellationError, ContractError, NonDeterminismError
from actors.kernel.runtime.log_entry import EntryKind
from actors.runtime.branch import Branch
from actors.runtime.groups import Gather, Group, ScopeGroup, Select, Selected

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence
    from types import TracebackType

    from actors.runtime.recorder import Recorder

T = TypeVar("T")


class Scopes:
    """The verbs that open branches, of one execution of a run."""

    def __init__(self, recorder: Recorder) -> None:
        self._run = recorder

    def _enter(self, verb: str, coros: Sequence[Coroutine[Any, Any, Any]]) -> tuple[Branch, str]:
        try:
            branch = self._run.turnstile.enter(verb)
        except BaseException:
            for coro in coros:
                coro.close()
            raise
        return branch, branch.take_position()

    async def _await(
        self, group: Group, verb: str, position: str, coros: Sequence[Coroutine[Any, Any, Any]]
    ) -> None:
        turnstile = self._run.turnstile
        turnstile.open_group(group)
        for index, coro in enumerate(coros):
            child = Branch(f"{position}.{index}.", coro)
            group.children.append(child)
            turnstile.add(child)
        try:
            await turnstile.group(group.parent, verb)
        finally:
            turnstile.close_group(group)

    async def gather(self, *coros: Coroutine[Any, Any, T]) -> list[T]:
        """See `RunContext.gather`."""
        branch, position = self._enter("gather", coros)
        group = Gather(branch)
        if coros:
            await self._await(group, "gather", position, coros)
        if group.failed is not None and group.failed.error is not None:
            raise group.failed.error
        return [child.value for child in group.children]

    async def select(self, *coros: Coroutine[Any, Any, Any]) -> Selected:
        """See `RunContext.select`."""
        if not coros:
            msg = "ctx.select needs at least one branch"
            raise ContractError(msg)
        branch, position = self._enter("select", coros)
        place = self._run.meet(position, (EntryKind.SELECT_WON,), "select", "")
        group = Select(branch)
        await self._await(group, "select", position, coros)
        winner = group.winner
        assert winner is not None
        index = group.children.index(winner)
        recorded = place.end if place is not None else None
        if recorded is None or not self._run.history.is_strict(recorded.seq):
            self._run.log.record(EntryKind.SELECT_WON, position, {"index": index})
        elif recorded.payload["index"] != index:
            was = f"select.won {recorded.payload['index']}"
            raise NonDeterminismError(position, was, f"branch {index}")
        if winner.error is not None:
            raise winner.error
        return Selected(index, winner.value)

    def scope(self) -> Scope:
        """See `RunContext.scope`."""
        return Scope(self._run)


class BranchHandle(Generic[T]):
    """One branch of a scope: await it for its result, or cancel it."""

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

    def __init__(self, recorder: Recorder) -> None:
        self._run = recorder
        self._position = ""
        self._group: ScopeGroup | None = None

    async def __aenter__(self) -> Self:
        branch = self._run.turnstile.enter("scope")
        self._position = branch.take_position()
        self._group = ScopeGroup(branch)
        self._run.turnstile.open_group(self._group)
        return self

    def start(self, coro: Coroutine[Any, Any, T]) -> BranchHandle[T]:
        """Add a branch; it begins as soon as this one waits for something."""
        group = self._entered(coro)
        child = Branch(f"{self._position}.{len(group.children)}.", coro)
        group.children.append(child)
        self._run.turnstile.add(child)
        return BranchHandle(self, child)

    def _entered(self, coro: Coroutine[Any, Any, Any] | None = None) -> ScopeGroup:
        try:
            branch = self._run.turnstile.enter("scope")
            return self._of(branch)
        except BaseException:
            if coro is not None:
                coro.close()
            raise

    def _of(self, branch: Branch) -> ScopeGroup:
        if self._group is None or self._group.parent is not branch:
            msg = "a scope is used by the branch that opened it, inside its `async with` block"
            raise ContractError(msg)
        return self._group

    async def join(self, branch: Branch) -> Any:
        """Return the branch's result, or raise its error."""
        group = self._entered()
        group.waits_for = branch
        try:
            await self._run.turnstile.group(group.parent, "scope")
        finally:
            group.waits_for = None
        group.joined.add(branch)
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
            await self._run.turnstile.group(group.parent, "scope")
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
            await self._run.turnstile.group(group.parent, "scope")
        finally:
            self._run.turnstile.close_group(group)
            self._group = None
        if exc is None and group.failed is not None and group.failed.error is not None:
            raise group.failed.error
