"""Operators' changes of runs and dead letters, and the deletion of old rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import Arrived, RunRow
from actors.kernel.store.arrivals import Submitted
from actors.kernel.store.forgotten import Forgotten

ARTIFACT_GRACE_S: Final = 86_400.0
"""Hosts keep an artifact without a pin for so long."""
USAGE_KEPT_S: Final = 400 * 86_400.0
"""Totals of usage are kept for so long at least: a year and the month in which it is billed."""
AUDIT_KEPT_S: Final = USAGE_KEPT_S
"""Audit rows are kept for so long at least."""


def agent_scope(agent: AgentId) -> str:
    """Return the scope of the artifacts that are an agent's, which go when it is forgotten."""
    return f"agent:{agent}"


class OperatorStore(Protocol):
    """Operators' changes of runs and dead letters."""

    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        """Queue a run that goes on from entry `at_seq` of another run's log; durable on return.

        Its id is derived from run, seq and `copy`: the same three again name the same run. It has no
        parent, no messages, and the other run's priority, policy, version and terms. Its own log is
        empty until its agent's turn comes; then its owner copies the entries (`RunRow.fork` says
        which). Whether it makes sense there is the caller's question: see `actors.runtime.worker.forking`.

        Raises:
            UnknownRunError: There is no such run, or it was swept.
            ContractError: Its log does not reach `at_seq`.
        """

    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        """Deliver dead letters again as new messages (id derived from the old one); each id once.

        Not those of a redriven run. A run cannot be redriven once one of its dead letters was sent again.
        """

    async def redrive_run(self, run_id: RunId) -> Submitted:
        """Start a dead run's work again: a new run with the same messages, in one commit; once.

        Its id is derived from the dead one's. It has no parent and the dead one's priority and policy.
        Dead letters of messages that the dead run began with count as redriven.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It has not failed.
            AlreadyRedrivenError: Dead letters of it were sent again by `redrive`.
        """

    async def discard(self, ids: Sequence[int]) -> int:
        """Forget dead letters for good; return how many there were. Redriven ones are left alone."""

    async def refold(self, run_id: RunId) -> RunRow:
        """Return the run's row as its log alone describes it. It equals `run()`, or there is a defect.

        Raises:
            UnknownRunError: There is no such run.
        """


class RetentionStore(Protocol):
    """Takes away what is old, in small batches."""

    async def sweep(self, *, older_than_s: float | None, limit: int = 200) -> int:
        """Sweep at most `limit` runs that ended longer ago; return the number of swept runs.

        Log, result, signals and answers are removed. The row stays as a tombstone (`RunRow.swept`) with its
        status, and is found by its id and its message's id. Runs with retention NONE are swept at any age;
        without `older_than_s` only they are. A caller that joined a run keeps its answer. Several hosts may
        call this at once.
        """

    async def sweep_these(self, run_ids: Sequence[RunId]) -> int:
        """Sweep these runs, as `sweep` does; return the number of swept runs.

        Open runs and swept runs stay as they are. Each call is executed as a whole or not at all.
        """

    async def forget_old(self, *, older_than_s: float | None, limit: int = 2000) -> int:
        """Forget what is older than this and than 8 days; return how many rows, of each kind at most `limit`.

        Tombstones go, then the ids of their messages, and dead letters, but for those whose run could be
        redriven in their place; and totals of usage that are older than `USAGE_KEPT_S`, and audit rows that
        are older than `AUDIT_KEPT_S`. Without `older_than_s` all of these stay. Whatever it is, ids that name
        no run go after 8 days, and artifacts without a pin after `ARTIFACT_GRACE_S`. Fewer than `limit`:
        nothing of that age is left, or it is found at a later call, or other hosts are at it. Safe to call
        from several hosts at once.
        """

    async def forget_agent(
        self, agent_id: AgentId, *, cancel: bool = False, limit: int = 200
    ) -> Forgotten:
        """Remove the agent's rows, of messages, dead letters and runs at most `limit` each.

        While a run of it is open nothing; with `cancel` its waiting messages, and the open runs are asked to
        stop. Ids of its messages stay known. Each call is whole or not at all; nothing is written by the
        agent's owner meanwhile. Copies of other agents stay: answers of its runs, messages on their way.
        """
