"""Whether the terms of a run can be kept: their numbers fit into columns, their texts are text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from actors.errors import ContractError
from actors.kernel.text import check_name_of, check_number

if TYPE_CHECKING:
    from actors.kernel.agent.supervision import Supervision
    from actors.kernel.runtime.scheduler import RetryPolicy

MAX_COUNT: Final = 2**53
"""The greatest number of tokens that a budget counts to."""


def check_supervision(terms: Supervision) -> None:
    """Return if every assembly can keep these terms.

    Raises:
        ContractError: A text or a number cannot be kept.
    """
    if terms.session_id is not None:
        check_name_of("session_id", terms.session_id)
    check_number("priority", terms.priority)
    check_number("max_runs of the spawn budget", terms.spawn_budget.max_runs)
    check_number("max_concurrent of the spawn budget", terms.spawn_budget.max_concurrent or 0)
    budget = terms.execution_budget
    check_number("max_turns of the execution budget", budget.max_turns or 0)
    for name, value in (("max_tokens", budget.max_tokens), ("max_cost_usd", budget.max_cost_usd)):
        if value is not None and not value <= MAX_COUNT:
            raise ContractError(
                f"{name} of the execution budget is above {MAX_COUNT}: leave it out"
            )


def check_policy(policy: RetryPolicy) -> None:
    """Return if every assembly can keep this retry policy.

    Raises:
        ContractError: A text or a number cannot be kept.
    """
    check_number("max_retries", policy.max_retries)
    for name in policy.non_retryable:
        check_name_of("error class in non_retryable", name)
