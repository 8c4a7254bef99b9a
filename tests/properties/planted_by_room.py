"""Faults in rooms of the runtime that no random program looks into, each with the test that finds it."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from actors._inmemory.runs import commit as _commit
from actors._inmemory.runs import operators, topics
from actors._inmemory.runs.topics import expand_rows
from actors._runtime.client import client
from actors._runtime.delivery import mail_service
from actors._runtime.delivery.fanout import PostDelivery
from actors._runtime.delivery.mail_service import Inbound
from actors._runtime.delivery.outbox_relay import OutboxRelay
from actors._runtime.journal.write_set import WriteSet
from actors._runtime.parts.composed import ComposedCommits
from actors._runtime.schedules import ticker
from actors._runtime.sharding.ownership import Recovery
from actors._runtime.verbs import secrets
from actors._runtime.verbs.waits import Waits
from actors._runtime.worker.admission import Admission, Slots, WaitQueue
from actors._runtime.worker.intake import Intake
from actors._runtime.worker.mailbox_table import MailboxTable
from actors.errors import PersistenceError
from broker._client import responses
from broker._wire import bodies, codec, headers
from persistence._postgres.sharding.heartbeat import Contact
from tests.harness.planting import Planted

if TYPE_CHECKING:
    import asyncio

    import pytest

    from actors._inmemory.runs.records import InboxRow
    from actors._inmemory.runs.rows import MemoryRows
    from actors._kernel.runtime.commit import Commit
    from actors._kernel.stores.schedule import Schedule, Tick
    from actors._kernel.stores.topics import Expanded
    from actors._kernel.stores.transport import MailBatch, OutboxRow


async def _nothing(*_: object, **__: object) -> None:
    """Leave out what should be done."""


def the_relay_does_not_wait_for_what_is_read(patch: pytest.MonkeyPatch) -> None:
    """What a commit wrote goes out before older rows of the same pair."""
    patch.setattr(OutboxRelay, "add", lambda self, rows: self._enqueue(rows))


def lost_rows_do_not_go_out_again(patch: pytest.MonkeyPatch) -> None:
    """What the broker accepted once counts as delivered."""
    patch.setattr(OutboxRelay, "_is_wanted", lambda self, row, _: row.n not in self._sent_sequences)


def mail_is_acknowledged_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """A host that dies then has lost it."""
    write = Inbound._write

    async def early(self: Inbound, batch: MailBatch, done: asyncio.Future[bool]) -> None:
        done.set_result(True)
        await write(self, batch, done)

    patch.setattr(Inbound, "_write", early)


def turns_overtake_a_batch(patch: pytest.MonkeyPatch) -> None:
    """What a turn of this host wrote is offered before a batch that was committed first."""

    def at_once(self: Intake, arrived: Any) -> None:
        for item in arrived:
            self.offer(item)

    patch.setattr(Intake, "routed", at_once)


def what_is_left_waits_for_the_scan(patch: pytest.MonkeyPatch) -> None:
    """Of a post with many followers the first chunk is expanded."""
    deliver = PostDelivery._deliver

    def forget(self: PostDelivery, expanded: Expanded) -> None:
        self._pending.clear()
        deliver(self, expanded)

    patch.setattr(PostDelivery, "_deliver", forget)


def lazy_posts_are_noted_late(patch: pytest.MonkeyPatch) -> None:
    """Who is woken may begin without the lazy post that came before."""
    deliver = PostDelivery._deliver

    def late(self: PostDelivery, expanded: Expanded) -> None:
        deliver(self, replace(expanded, lazy={}))
        deliver(self, replace(expanded, woken={}))

    patch.setattr(PostDelivery, "_deliver", late)


def one_lazy_follower_makes_all_read(patch: pytest.MonkeyPatch) -> None:
    """Of a shard with lazy mail everybody who starts reads the store first."""
    have_lazy_mail = MailboxTable.have_lazy_mail
    patch.setattr(
        MailboxTable, "have_lazy_mail", lambda self, shard, _: have_lazy_mail(self, shard, None)
    )


def posts_overtake_in_a_shard(patch: pytest.MonkeyPatch) -> None:
    """The newest post is expanded first."""
    expand = expand_rows

    def newest(rows: MemoryRows, limit: int) -> list[InboxRow]:
        rows.follows.work = dict(reversed(rows.follows.work.items()))
        return expand(rows, limit)

    patch.setattr(topics, "expand_rows", newest)


def signals_of_new_shards_are_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """A run whose signal came while nobody owned it sleeps on."""
    patch.setattr(Recovery, "_read_signals", _nothing)


def timers_of_new_shards_are_not_read(patch: pytest.MonkeyPatch) -> None:
    """A sleep that began on another host never ends."""
    patch.setattr(Recovery, "_read_timers", _nothing)


def missed_ticks_come_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """After an outage every tick is made up for, whatever the schedule says."""
    tick_of = ticker.tick_of

    def each(schedule: Schedule, now: Any) -> Tick:
        return tick_of(replace(schedule, catch_up="all"), now)

    patch.setattr(ticker, "tick_of", each)


def zones_are_not_reviewed(patch: pytest.MonkeyPatch) -> None:
    """A tick that was computed under old rules fires at its old time."""
    patch.setattr(ticker.ScheduleService, "_review", _nothing)


def places_are_kept(patch: pytest.MonkeyPatch) -> None:
    """Who leaves memory goes on using its place."""
    patch.setattr(Admission, "release", lambda self, permit: self._permits.discard(permit))


def late_comers_pass_the_queue(patch: pytest.MonkeyPatch) -> None:
    """A gate that is open lets anybody in."""
    patch.setattr(WaitQueue, "admits", lambda _self, _item, *, free: free > 0)


def doubtful_places_are_free(patch: pytest.MonkeyPatch) -> None:
    """After a lost answer the host believes that it holds nothing."""
    patch.setattr(Slots, "mark_unanswered", lambda _: None)


def waits_are_shown_to_nobody(patch: pytest.MonkeyPatch) -> None:
    """A run at rest does not write whose answers it waits for: nobody sees a cycle."""
    patch.setattr(Waits, "rows", lambda *_: ())


def no_timer_is_set(patch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a time waits for ever."""
    patch.setattr(f"{Waits.__module__}.Alarm", lambda *_: _NoAlarm())


class _NoAlarm:
    def cancel(self) -> None:
        """There is nothing to cancel."""


def messages_leave_twice(patch: pytest.MonkeyPatch) -> None:
    """A send puts its message into the turn a second time."""
    commit = WriteSet.commit

    def twice(self: WriteSet, *args: Any, **others: Any) -> Commit:
        turn = commit(self, *args, **others)
        again = tuple(
            replace(row, message=replace(row.message, id=f"{row.message.id}-2"))
            for row in turn.outgoing
        )
        return replace(turn, outgoing=turn.outgoing + again)

    patch.setattr(WriteSet, "commit", twice)


def what_is_there_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    """A commit that suspends does not say that the message it waits for has come."""
    patch.setattr(_commit, "has_arrived", lambda *_: False)


def stale_hosts_may_write(patch: pytest.MonkeyPatch) -> None:
    """Owner and epoch of a lease are not compared."""
    patch.setattr(_commit, "fenced", lambda *_: True)


def parts_forget_the_order(patch: pytest.MonkeyPatch) -> None:
    """A store of parts lets a run take a message before an older one of its sender."""

    async def none(*_: object) -> bool:
        return False

    patch.setattr(ComposedCommits, "_has_older", none)


def every_tenant_is_served(patch: pytest.MonkeyPatch) -> None:
    """A client reaches agents of another tenant."""
    patch.setattr(client, "_check_tenant", lambda *_: None)


def tombstones_go_at_once(patch: pytest.MonkeyPatch) -> None:
    """Swept runs are forgotten however short ago they ended."""
    patch.setattr(operators, "LEAST_S", 0.0)


def forgotten_agents_run_on(patch: pytest.MonkeyPatch) -> None:
    """Runs of an agent that is to be forgotten are not told to stop."""
    patch.setattr(operators, "ask_to_stop", lambda *_: ())


def silence_counts_as_undone(patch: pytest.MonkeyPatch) -> None:
    """Attempts that were sent and lost are reported as never made."""
    pause_after = responses.Tries.pause_after

    def undone(self: responses.Tries, missed: responses.MissedError) -> float:
        self.is_under_way = False
        return pause_after(self, missed)

    patch.setattr(responses.Tries, "pause_after", undone)


def short_losses_add_up(patch: pytest.MonkeyPatch) -> None:
    """Returns of the broker do not end the count of its absence."""
    seen = Contact.seen

    def counts_on(self: Contact, is_connected: bool, now: float) -> Any:
        since = self._changed_since
        answer = seen(self, is_connected, now)
        if is_connected and self._has_broker:
            self._changed_since = since
        return answer

    patch.setattr(Contact, "seen", counts_on)


def header_values_stay_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """Texts become header values without being encoded."""
    patch.setattr(headers, "_PLAIN", re.compile(r"(?s:.*)"))


def acknowledgements_are_messages(patch: pytest.MonkeyPatch) -> None:
    """Answers of the broker reach agents as if outsiders had written them."""
    patch.setattr(codec, "_EDGE", re.compile(r"(?!)"))


def sizes_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Bodies of any size are decoded, and one that was cut off is called malformed."""
    patch.setattr(bodies, "check_size", lambda *_: None)


def written_otherwise_a_secret_stays(patch: pytest.MonkeyPatch) -> None:
    """Secrets are taken out as they stand, and left in URLs."""
    patch.setattr(secrets, "_forms", lambda secret: {secret})


def half_a_secret_stays(patch: pytest.MonkeyPatch) -> None:
    """Texts of errors that were cut off inside of a value keep its beginning."""
    patch.setattr(secrets, "MAX_ERROR", -1)


def any_variable_is_a_secret(patch: pytest.MonkeyPatch) -> None:
    """Settings of the host can be asked for by agents."""
    patch.setattr(secrets, "VARIABLE", "")


def doubts_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """Each doubt about the broker puts the bypass off once more."""

    def begin(self: mail_service.Suspicion, now: float) -> None:
        self.since = now

    patch.setattr(mail_service.Suspicion, "begin", begin)


def refused_rows_count_as_handed_over(patch: pytest.MonkeyPatch) -> None:
    """Rows that the store makes wait are not handed over again."""

    async def send(self: mail_service.Bypass, row: OutboxRow) -> int:
        with contextlib.suppress(PersistenceError):
            await self._outbox.hand_over(row)
        return 0

    patch.setattr(mail_service.Bypass, "send", send)


_UNIT: Final = "tests/unit/runtime"
_BROKER: Final = "tests/unit/broker"
_BEHAVIOUR: Final = "tests/behaviour"

PLANTED: Final = [
    Planted(
        plant=the_relay_does_not_wait_for_what_is_read,
        found_by=f"{_UNIT}/delivery/test_outbox_relay.py::"
        "test_what_a_commit_wrote_does_not_overtake_what_is_still_being_read",
    ),
    Planted(
        plant=lost_rows_do_not_go_out_again,
        found_by=f"{_UNIT}/delivery/test_outbox_relay.py::"
        "test_what_the_broker_has_goes_out_again_only_if_its_receiver_has_read_past_it",
    ),
    Planted(
        plant=mail_is_acknowledged_before_it_is_written,
        found_by=f"{_UNIT}/delivery/test_inbound.py::"
        "test_a_batch_is_acknowledged_when_it_is_written_and_offered",
    ),
    Planted(
        plant=turns_overtake_a_batch,
        found_by=f"{_UNIT}/delivery/test_inbound.py::"
        "test_what_a_commit_wrote_meanwhile_is_offered_behind_what_came_before",
    ),
    Planted(
        plant=what_is_left_waits_for_the_scan,
        found_by=f"{_UNIT}/delivery/test_fanout.py::test_what_is_left_is_brought_next",
    ),
    Planted(
        plant=lazy_posts_are_noted_late,
        found_by=f"{_UNIT}/delivery/test_fanout.py::"
        "test_posts_of_notified_shards_are_delivered_at_once",
    ),
    Planted(
        plant=one_lazy_follower_makes_all_read,
        found_by=f"{_BEHAVIOUR}/test_lazy_follow.py::"
        "test_a_lazy_follower_causes_no_reads_for_others[memory-drops]",
    ),
    Planted(
        plant=posts_overtake_in_a_shard,
        found_by="tests/conformance/stores/test_posts.py::"
        "test_posts_of_one_publisher_come_in_order[memory]",
    ),
    Planted(
        plant=signals_of_new_shards_are_not_looked_for,
        found_by=f"{_BEHAVIOUR}/test_recovery.py::"
        "test_a_signal_or_message_without_a_live_host_wakes_the_run_later[memory-drops-signal]",
    ),
    Planted(
        plant=timers_of_new_shards_are_not_read,
        found_by=f"{_BEHAVIOUR}/test_waits.py::test_a_sleep_ends_on_another_host[memory-drops]",
    ),
    Planted(
        plant=missed_ticks_come_one_by_one,
        found_by=f"{_BEHAVIOUR}/test_schedules.py::"
        "test_ticks_missed_in_an_outage_send_one_message[memory-drops]",
    ),
    Planted(
        plant=zones_are_not_reviewed,
        found_by=f"{_BEHAVIOUR}/test_schedules.py::"
        "test_a_tick_whose_zone_has_new_rules_is_moved_before_it_fires[memory-drops]",
    ),
    Planted(
        plant=places_are_kept,
        found_by=f"{_BEHAVIOUR}/test_limits.py::"
        "test_an_evicted_run_releases_its_slot[memory-drops]",
    ),
    Planted(
        plant=late_comers_pass_the_queue,
        found_by=f"{_UNIT}/worker/test_limiters.py::"
        "test_no_run_passes_while_another_waits_or_no_slot_is_free",
    ),
    Planted(
        plant=doubtful_places_are_free,
        found_by=f"{_UNIT}/worker/test_limiters.py::"
        "test_after_a_lost_answer_all_that_was_asked_counts_as_held",
    ),
    Planted(
        plant=waits_are_shown_to_nobody,
        found_by=f"{_BEHAVIOUR}/test_ask.py::test_a_cycle_of_independent_runs_fails[memory-drops]",
    ),
    Planted(
        plant=no_timer_is_set,
        found_by=f"{_BEHAVIOUR}/test_waits.py::"
        "test_a_sleep_is_never_early_and_replays_at_once[memory-hot]",
    ),
    Planted(
        plant=messages_leave_twice,
        found_by=f"{_BEHAVIOUR}/test_mail.py::test_sends_of_a_run_arrive_once_and_in_order[memory-hot]",
    ),
    Planted(
        plant=what_is_there_wakes_nobody,
        found_by="tests/conformance/run_store/test_signals.py::"
        "test_a_suspension_that_is_over_before_it_begins_says_so[memory]",
    ),
    Planted(
        plant=stale_hosts_may_write,
        found_by="tests/conformance/run_store/test_owners.py::"
        "test_a_host_whose_shard_was_taken_over_can_write_nothing[memory]",
    ),
    Planted(
        plant=parts_forget_the_order,
        found_by="tests/conformance/run_store/test_mail.py::"
        "test_a_commit_takes_no_message_before_an_older_one_of_its_sender[composed]",
    ),
    Planted(
        plant=every_tenant_is_served,
        found_by=f"{_BEHAVIOUR}/test_submit.py::test_a_foreign_tenant_is_refused[memory-hot]",
    ),
    Planted(
        plant=tombstones_go_at_once,
        found_by=f"{_UNIT}/sharding/test_retention.py::test_nothing_of_a_run_is_kept_for_ever",
    ),
    Planted(
        plant=forgotten_agents_run_on,
        found_by=f"{_UNIT}/sharding/test_retention.py::"
        "test_runs_of_an_agent_are_told_to_stop_first",
    ),
    Planted(
        plant=silence_counts_as_undone,
        found_by=f"{_BROKER}/test_client_tries.py::"
        "test_nothing_was_done_only_if_no_attempt_got_through[whys4-OutcomeUnknownError]",
    ),
    Planted(
        plant=short_losses_add_up,
        found_by="tests/unit/persistence/test_contact.py::test_short_losses_never_add_up",
    ),
    Planted(
        plant=header_values_stay_as_they_are,
        found_by=f"{_BROKER}/test_headers.py::test_any_text_survives_as_a_header_value[%41]",
    ),
    Planted(
        plant=acknowledgements_are_messages,
        found_by=f"{_BROKER}/test_codec.py::"
        "test_an_acknowledgement_of_the_broker_is_no_message[ack0]",
    ),
    Planted(
        plant=sizes_are_not_checked,
        found_by=f"{_BROKER}/test_codec.py::"
        "test_a_body_that_is_too_large_is_cut_and_becomes_one_dead_letter_of_its_sender",
    ),
    Planted(
        plant=written_otherwise_a_secret_stays,
        found_by=f"{_UNIT}/context/test_secrets.py::test_values_are_taken_out_everywhere",
    ),
    Planted(
        plant=half_a_secret_stays,
        found_by=f"{_UNIT}/context/test_secrets.py::"
        "test_an_error_longer_than_is_kept_gives_no_part_away",
    ),
    Planted(
        plant=any_variable_is_a_secret,
        found_by=f"{_UNIT}/context/test_secrets.py::test_a_variable_has_a_prefix_of_its_own",
    ),
    Planted(
        plant=doubts_begin_anew,
        found_by=f"{_UNIT}/delivery/test_bypass.py::test_a_suspicion_is_waited_for_from_its_start",
    ),
    Planted(
        plant=refused_rows_count_as_handed_over,
        found_by=f"{_UNIT}/delivery/test_bypass.py::test_what_has_to_wait_is_handed_over_again",
    ),
]
"""The table of the faults."""
