"""Faults in parts beside the run loop: retention, forks, secrets, clients, the broker. As `planted_by_room`."""

from __future__ import annotations

import contextlib
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from actors._inmemory.runs import operators
from actors._kernel.agent.transcript import NO_CUT
from actors._kernel.basics import Backoff
from actors._runtime.client.gateway_api import Served
from actors._runtime.delivery import mail_service, stream_guard
from actors._runtime.delivery.outbox_relay import OutboxRelay
from actors._runtime.verbs import secrets
from actors._runtime.verbs.conversation import history, windows
from actors._runtime.verbs.conversation.sessions import Sessions
from actors._runtime.verbs.conversation.windows import RecordedCalls
from actors._runtime.worker import launcher
from broker._client.responses import Tries
from broker._mail import backlog
from broker._nats import client as nats_client
from persistence._postgres.sharding.heartbeat import Contact
from tests.harness.planting import Planted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from actors._kernel.agent.message import ChatMessage
    from actors._kernel.agent.models import GenerationOptions, LLMClient, LLMResponse
    from actors._kernel.runtime.ids import AgentId
    from broker._client.responses import MissedError


def open_runs_are_swept(patch: pytest.MonkeyPatch) -> None:
    """Retention takes runs of any status."""
    patch.setattr(operators, "_may_go", lambda run, _before: not run.swept)


def forks_begin_inside_an_effect(patch: pytest.MonkeyPatch) -> None:
    """An effect that had begun in the source happens again in the fork."""
    patch.setattr(launcher, "refuse_open", lambda _entries: None)


def secrets_stay_in_results(patch: pytest.MonkeyPatch) -> None:
    """Values of secrets are recorded as tools return and raise them."""
    patch.setattr(secrets, "redacted", lambda value, _secrets: value)


def lost_requests_count_as_undone(patch: pytest.MonkeyPatch) -> None:
    """A client says that nothing was done, though a host may have taken the request."""
    pause_after = Tries.pause_after

    def forget(self: Tries, missed: MissedError) -> float:
        self._may_be_done = False
        return pause_after(self, missed)

    patch.setattr(Tries, "pause_after", forget)


def pauses_never_grow(patch: pytest.MonkeyPatch) -> None:
    """A client asks a server that is down every 50 ms for ever."""
    patch.setattr(Backoff, "next_s", lambda _self: 0.05)


def cancellations_get_lost(patch: pytest.MonkeyPatch) -> None:
    """A connect that is refused while it is cancelled is not cancelled."""
    patch.setattr(nats_client, "_cancellable", contextlib.nullcontext)


def every_doubt_goes_round_the_broker(patch: pytest.MonkeyPatch) -> None:
    """Messages go by the database as soon as one publish was slow."""
    patch.setattr(
        mail_service.Suspicion, "left_s", lambda self, _now: None if self.since is None else 0.0
    )


def unpublishable_rows_are_dropped(patch: pytest.MonkeyPatch) -> None:
    """A message that the broker never takes leaves without a dead letter."""

    async def drop(*_: Any) -> bool:
        return True

    patch.setattr(OutboxRelay, "_give_up", drop)


def any_stream_is_read_on(patch: pytest.MonkeyPatch) -> None:
    """A stream from which more was purged than allowed counts as whole."""

    async def fits(*_: object) -> bool:
        return True

    patch.setattr(stream_guard, "_fits", fits)


def a_moment_without_the_broker_counts(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat tells of each loss at once."""

    def seen(_self: Contact, is_connected: bool, _now: float) -> str | None:
        return None if is_connected else "broker"

    patch.setattr(Contact, "seen", seen)


def every_reason_is_told(patch: pytest.MonkeyPatch) -> None:
    """A sender of garbage makes a dead letter for each reason that it finds."""
    patch.setattr(backlog, "REASONS_OF_ONE", 10**9)


def the_gateway_believes_its_cache(patch: pytest.MonkeyPatch) -> None:
    """Agents count as served for ever once a host has served them."""
    includes = Served.includes

    async def keep(self: Served, agent_id: AgentId) -> bool:
        is_included = await includes(self, agent_id)
        self._until = float("inf")
        return is_included

    patch.setattr(Served, "includes", keep)


def turns_get_new_ids(patch: pytest.MonkeyPatch) -> None:
    """A call that is made again adds its turns again."""
    numbers = count()
    patch.setattr(history, "turn_id", lambda *_: f"turn {next(numbers)}")


def paid_calls_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A summary that was bought is bought again when the call that it served is made again."""

    async def ask(
        _: RecordedCalls,
        llm: LLMClient,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        return await llm.generate(messages, options=options)

    patch.setattr(RecordedCalls, "ask", ask)


def turns_outlive_failed_runs(patch: pytest.MonkeyPatch) -> None:
    """Retention RUN is for runs that complete."""
    clear = Sessions.clear

    async def only_completed(self: Sessions) -> None:
        if not any(entry.kind == "run.failed" for entry in self._run.log.writes.entries):
            await clear(self)

    patch.setattr(Sessions, "clear", only_completed)


def windows_go_back_to_the_beginning(patch: pytest.MonkeyPatch) -> None:
    """No cut is ever written: a session costs more with each turn."""
    patch.setattr(windows, "new_cut", lambda *_: (NO_CUT, None))


_UNIT: Final = "tests/unit"
_BEHAVIOUR: Final = "tests/behaviour"

PLANTED: Final = [
    Planted(
        plant=open_runs_are_swept,
        found_by=f"{_BEHAVIOUR}/test_retention.py::test_an_open_run_keeps_its_rows[memory-drops]",
    ),
    Planted(
        plant=forks_begin_inside_an_effect,
        found_by=f"{_BEHAVIOUR}/test_fork.py::test_a_fork_that_would_repeat_an_effect_is_refused[memory-hot]",
    ),
    Planted(
        plant=secrets_stay_in_results,
        found_by=f"{_BEHAVIOUR}/test_secrets.py::"
        "test_an_error_is_raised_without_the_value[memory-hot]",
    ),
    Planted(
        plant=lost_requests_count_as_undone,
        found_by=f"{_UNIT}/broker/test_client_tries.py::"
        "test_what_a_host_has_taken_before_is_not_called_undone",
    ),
    Planted(
        plant=pauses_never_grow,
        found_by=f"{_UNIT}/broker/test_client_tries.py::"
        "test_hosts_that_cannot_now_are_asked_less_and_less_often",
    ),
    Planted(
        plant=cancellations_get_lost,
        found_by=f"{_UNIT}/broker/test_cancelled_connect.py::"
        "test_a_connect_whose_outcome_arrives_with_its_cancellation_is_cancelled[refused]",
    ),
    Planted(
        plant=every_doubt_goes_round_the_broker,
        found_by=f"{_UNIT}/runtime/delivery/test_bypass.py::"
        "test_while_the_broker_is_well_the_store_is_asked_nothing",
    ),
    Planted(
        plant=unpublishable_rows_are_dropped,
        found_by=f"{_UNIT}/runtime/delivery/test_outbox_relay.py::"
        "test_what_can_never_be_published_is_buried_and_the_next_goes_out",
    ),
    Planted(
        plant=any_stream_is_read_on,
        found_by=f"{_UNIT}/runtime/delivery/test_stream_guard.py::"
        "test_a_stream_from_which_more_was_purged_than_allowed_is_made_anew",
    ),
    Planted(
        plant=a_moment_without_the_broker_counts,
        found_by=f"{_UNIT}/persistence/test_contact.py::"
        "test_a_loss_counts_once_it_has_lasted_for_a_lease",
    ),
    Planted(
        plant=every_reason_is_told,
        found_by=f"{_UNIT}/broker/test_body_budget.py::"
        "test_of_one_sender_so_many_reasons_are_reported_in_a_period",
    ),
    Planted(
        plant=the_gateway_believes_its_cache,
        found_by=f"{_BEHAVIOUR}/test_front.py::"
        "test_a_type_without_a_host_is_refused_after_the_cache_expires[memory-hot]",
    ),
    Planted(
        plant=turns_get_new_ids,
        found_by=f"{_BEHAVIOUR}/test_conversations.py::test_a_summary_is_bought_once[memory-hot]",
    ),
    Planted(
        plant=paid_calls_are_forgotten,
        found_by=f"{_BEHAVIOUR}/test_conversation_deaths.py::"
        "test_a_conversation_survives_a_crash_at_each_write[memory-hot-die before-permanent]",
    ),
    Planted(
        plant=turns_outlive_failed_runs,
        found_by=f"{_BEHAVIOUR}/test_conversations.py::"
        "test_retention_holds_however_a_run_ends[memory-hot-failed-run]",
    ),
    Planted(
        plant=windows_go_back_to_the_beginning,
        found_by=f"{_BEHAVIOUR}/test_conversations.py::"
        "test_a_window_starts_where_the_last_one_started[memory-hot]",
    ),
]
"""The table of the faults."""
