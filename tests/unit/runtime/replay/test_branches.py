"""Groups of branches: whom each closes, and when its parent goes on. The pure decision."""

from __future__ import annotations

import asyncio

import pytest

from actors._runtime.replay.branches import (
    Branch,
    BranchState,
    Gather,
    Group,
    OpenGroups,
    ScopeGroup,
    Select,
    innermost,
)


class Control:
    """A `BranchControl` that writes down what groups decide; whom they close ends at once, if it may."""

    def __init__(self, *, slow: bool = False) -> None:
        self.done: list[str] = []
        self._slow = slow

    def release(self, branch: Branch) -> None:
        """The parent goes on."""
        self.done.append(f"go {branch.prefix}")
        branch.state = BranchState.CODE

    def close(self, branch: Branch) -> None:
        """A child is closed."""
        target = innermost(branch)
        self.done.append(f"close {target.prefix}")
        target.closed = True
        if not self._slow:
            end(target, asyncio.CancelledError())


def end(branch: Branch, error: BaseException | None = None) -> None:
    """Let the code of a branch end."""
    branch.state, branch.error = BranchState.DONE, error
    if branch.group is not None:
        branch.group.child_ended(branch)


def awaited(group: Group, *names: str) -> list[Branch]:
    """Children of these names; their parent waits for the group."""
    children = [Branch(name) for name in names]
    for child in children:
        group.add(child)
        child.state = BranchState.MISS
    group.is_awaited, group.parent.state = True, BranchState.GROUP
    return children


def steps(group: Group, control: Control | None = None) -> list[str]:
    """All that the group does now."""
    control = control or Control()
    while group.step(control):
        pass
    return control.done


def test_positions_are_counted_by_branch() -> None:
    """Each has the branch's prefix and the next number."""
    branch = Branch("2.0.")

    assert [branch.take_position() for _ in range(3)] == ["2.0.0", "2.0.1", "2.0.2"]


def test_a_gather_waits_for_all_its_children() -> None:
    """The last one's end lets its parent go on."""
    group = Gather(Branch("p"))
    a, b = awaited(group, "a", "b")

    end(b)
    assert steps(group) == []
    end(a)
    assert steps(group) == ["go p"]


def test_a_failure_closes_the_others_of_a_gather_first() -> None:
    """The parent goes on when they have ended, one after the other, and sees the first failure."""
    group = Gather(Branch("p"))
    _, b, _, d = awaited(group, "a", "b", "c", "d")

    end(d, ValueError("first"))
    end(b, ValueError("second"))

    assert steps(group) == ["close a", "close c", "go p"]
    assert group.failed is d, "those that were closed, or failed later, are not to blame"


def test_an_empty_gather_lets_its_parent_go_on() -> None:
    """There is nobody to wait for."""
    group = Gather(Branch("p"))
    awaited(group)

    assert steps(group) == ["go p"]


def test_a_group_that_is_not_awaited_does_nothing() -> None:
    """Nor one whose parent waits for something else: an inner group of it, say."""
    group = Gather(Branch("p"))
    [a] = awaited(group, "a")
    end(a)
    group.is_awaited = False
    assert steps(group) == []

    group.is_awaited, group.parent.state = True, BranchState.HIT
    assert steps(group) == []


def test_the_first_to_end_wins_a_select_also_by_an_error() -> None:
    """The others are closed before the parent goes on."""
    for error in (None, ValueError("no")):
        group = Select(Branch("p"))
        _, b, _ = awaited(group, "a", "b", "c")

        end(b, error)

        assert steps(group) == ["close a", "close c", "go p"]
        assert group.winner is b


def test_a_loser_that_takes_its_time_is_waited_for() -> None:
    """Who cleans up is not left behind, and ends without becoming the winner."""
    group, control = Select(Branch("p")), Control(slow=True)
    a, b = awaited(group, "a", "b")

    end(b)
    group.step(control)
    group.step(control)
    assert "go p" not in control.done
    end(a)

    assert steps(group)[-1:] == ["go p"]
    assert group.winner is b


def test_a_scope_goes_on_when_all_its_children_have_ended() -> None:
    """Also those that came while it waited."""
    group = ScopeGroup(Branch("p"))
    [a] = awaited(group, "a")
    late = Branch("late")
    group.add(late)

    end(a)
    assert steps(group) == []
    end(late)
    assert steps(group) == ["go p"]


def test_who_joins_a_child_of_a_scope_waits_for_that_one() -> None:
    """And closes nobody, whether it or another one failed."""
    group = ScopeGroup(Branch("p"))
    a, b, _ = awaited(group, "a", "b", "c")
    group.waits_for = b

    end(a, ValueError("no"))
    assert steps(group) == []
    end(b)
    assert steps(group) == ["go p"]


def test_a_failure_that_its_parent_has_seen_closes_nobody() -> None:
    """Another one does."""
    group = ScopeGroup(Branch("p"))
    a, b, _ = awaited(group, "a", "b", "c")
    end(a, ValueError("seen"))
    group.joined_branches.add(a)
    assert steps(group) == []

    end(b, ValueError("not seen"))

    assert group.failed is b
    assert steps(group) == ["close c", "go p"]


def test_a_child_that_is_to_be_closed_is_closed_alone() -> None:
    """The parent goes on when it has ended; the others stay."""
    group = ScopeGroup(Branch("p"))
    a, b = awaited(group, "a", "b")
    group.to_close = b

    assert steps(group) == ["close b", "go p"]
    assert not a.is_done


def test_a_scope_whose_body_has_failed_closes_all() -> None:
    """In order."""
    group = ScopeGroup(Branch("p"))
    awaited(group, "a", "b")
    group.close_all = True

    assert steps(group) == ["close a", "close b", "go p"]


def test_the_innermost_open_branch_is_closed_first() -> None:
    """Of the group that was opened last, the first child that is open, and of that the same."""
    root = Branch("r")
    outer, inner, deep = ScopeGroup(root), Gather(root), Branch("deep")
    groups = OpenGroups()
    groups.open(outer)
    groups.open(inner)
    [side] = awaited(outer, "side")
    first, second = awaited(inner, "first", "second")
    nested = Gather(second)
    groups.open(nested)
    nested.add(deep)

    assert innermost(root) is first
    end(first)
    assert innermost(root) is deep
    end(deep)
    assert innermost(root) is second
    end(second)
    assert innermost(root) is side
    end(side)
    assert innermost(root) is root


def test_of_two_groups_the_inner_one_goes_on_first() -> None:
    """Both have something to do; the outer one was touched first."""
    groups, root = OpenGroups(), Branch("r")
    outer, control = Gather(root), Control()
    groups.open(outer)
    [child] = awaited(outer, "child")
    inner = Gather(child)
    groups.open(inner)
    [grandchild] = awaited(inner, "grandchild")
    end(grandchild)
    outer.child_ended(Branch("failed"))
    groups.touch(outer)
    groups.touch(inner)

    assert groups.step(control)

    assert control.done == ["go child"]


@pytest.mark.parametrize("how", ["closed", "parent closed", "not touched"])
def test_a_group_that_nobody_waits_for_is_passed_over(how: str) -> None:
    """It has been closed, its parent has been, or nothing happened in it."""
    groups, control = OpenGroups(), Control()
    group = Gather(Branch("p"))
    groups.open(group)
    [a] = awaited(group, "a")
    end(a)
    if how != "not touched":
        groups.touch(group)
    if how == "closed":
        groups.close(group)
    group.parent.closed = how == "parent closed"

    assert not groups.step(control)

    assert control.done == []
    assert groups.due == []


def test_the_groups_of_a_run_know_whether_a_select_is_open() -> None:
    """As long as one is; and whether there is any."""
    groups, root = OpenGroups(), Branch("r")
    both: list[Group] = [Gather(root), Select(root)]
    for group in both:
        groups.open(group)
    assert groups.is_selecting
    groups.close(both[1])

    assert not groups.is_selecting
    assert groups
    assert root.groups == both[:1]
    groups.close(both[0])
    assert not groups
