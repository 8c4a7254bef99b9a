"""Columns that few commits have, as the one JSON argument of `commit_turns`: null when no commit has any.

Spawns, answers, waits, what is spent, follows, posts, messages given back and refused questions. Author data
goes as text inside it, so that it is stored as it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from actors.kernel.agent.message import MessageKey
from actors.kernel.json import JsonValue
from actors.kernel.runtime.commit import Commit, Outgoing, Retry, Spawned, Then
from actors.kernel.runtime.ids import TopicId, partition_hash, place_of
from actors.kernel.runtime.waits import Wait
from persistence.postgres.commits.encode import json_text, message_text

TalkRow: TypeAlias = "dict[str, Any]"
Talk: TypeAlias = "Mapping[str, list[TalkRow]]"
"""Spawns, answers, waits, spends, follows, posts, releases and withdraws of a commit."""

WAITING: Final = "waiting"
"""Key of commits that replace all waits of their run, because they are few or the stored rows are unknown."""

_MUST: Final = "must"
"""Mark of a wait without which the run cannot continue."""

FEW_WAITS: Final = 16
"""Largest number of waits that a commit replaces as a whole; of more it writes the changes."""

_ANY_ORDER: Final = "any_order"
"""See `Commit.any_order`."""


def talk_of(commit: Commit) -> Talk | None:
    """Return the rare rows of the commit, None if it has none."""
    posts = [out for out in commit.outgoing if isinstance(out.target, TopicId)]
    if not (
        posts
        or commit.spawned
        or commit.answers
        or commit.follows
        or commit.waits is not None
        or commit.budget is not None
        or commit.any_order
        or commit.withdraw
        or (isinstance(commit.then, Retry) and commit.then.release)
        or commit.unless_answered
    ):
        return None
    sender = f"spawn:{commit.lease.agent_id}"
    talk: dict[str, list[TalkRow]] = {
        "spawns": [_spawn(child, sender) for child in commit.spawned],
        "answers": _answers(commit),
        "spends": _spends(commit),
        "follows": _follows(commit),
        "posts": [_post(out) for out in posts],
        "releases": _releases(commit.then),
        "withdraws": [_withdraw(question) for question in commit.withdraw],
        "unanswered": [{"key": key} for key in commit.unless_answered],
    }
    if commit.waits is not None:
        talk |= _waits(commit.waits, commit.known_waits)
    if commit.any_order:
        talk[_ANY_ORDER] = [{}]
    return talk


def talk_argument(talks: Iterable[tuple[int, Talk]]) -> str | None:
    """Return JSON with the rows of these commits, each with its commit's number; None if there are no rows."""
    merged: dict[str, list[Any]] = {}
    for number, talk in talks:
        for name, rows in talk.items():
            if not rows:
                continue
            if name in (WAITING, _MUST, _ANY_ORDER):
                merged.setdefault(name, []).append(number)
            else:
                merged.setdefault(name, []).extend({"t": number, **row} for row in rows)
    return json_text(merged, "turn") if merged else None


def runs_named(talk: Talk) -> list[str]:
    """Return the ids of runs that this commit answers or begins to wait for. The commit locks them, too."""
    named: list[str] = [answer["run"] for answer in talk["answers"]]
    named += [wait["target"] for wait in talk.get("waits", ()) if wait["target"] is not None]
    return named


def text_or_none(value: JsonValue, where: str) -> str | None:
    """Return JSON data as text; None stays None."""
    return None if value is None else json_text(value, where)


def _spawn(child: Spawned, sender: str) -> TalkRow:
    row: TalkRow = {"run": child.run.run_id, "place": child.position}
    if child.boot is not None:
        body = message_text(child.boot, sender)
        row |= {"sender": sender, "id": child.boot.id, "body": body}
    return row


def _answers(commit: Commit) -> list[TalkRow]:
    return [
        {
            "run": answer.run_id,
            "key": answer.key,
            "status": answer.status,
            "result": text_or_none(answer.result, "reply"),
            "error": text_or_none(answer.error, "reply"),
            "by": answer.by,
            "last": answer.last_seq,
        }
        for answer in commit.answers
    ]


def _waits(waits: Sequence[Wait], known: Sequence[Wait] | None) -> dict[str, list[TalkRow]]:
    """Return the rows that change a run's waits. A wait that did not change is the same object in `known`."""
    if known is None or len(waits) <= FEW_WAITS:
        return {WAITING: [{}], "waits": [_wait(wait) for wait in waits]}
    before, now = set(map(id, known)), set(map(id, waits))
    new = [wait for wait in waits if id(wait) not in before]
    changed = {(wait.position, wait.key) for wait in new}
    gone = [
        {"position": wait.position, "key": wait.key}
        for wait in known
        if id(wait) not in now and (wait.position, wait.key) not in changed
    ]
    must: list[TalkRow] = [{}] if any(wait.must for wait in waits) else []
    return {"waits": [_wait(wait) for wait in new], "gone": gone, _MUST: must}


def _wait(wait: Wait) -> TalkRow:
    return {
        "position": wait.position,
        "key": wait.key,
        "kind": wait.kind,
        "agent": None if wait.agent is None else str(wait.agent),
        "target": wait.target_run,
        "must": wait.must,
        "request": text_or_none(wait.request, "request"),
        "expires_at": wait.expires_at,
    }


def _spends(commit: Commit) -> list[TalkRow]:
    spent = commit.budget
    if spent is None:
        return []
    return [
        {
            "tokens": spent.tokens,
            "cost_usd": spent.cost_usd,
            "turns": spent.turns,
            "place": spent.position,
        }
    ]


def _withdraw(question: MessageKey) -> TalkRow:
    return {
        "agent": str(question.agent),
        "hash": partition_hash(question.agent),
        "sender": question.sender,
        "id": question.message_id,
    }


def _follows(commit: Commit) -> list[TalkRow]:
    follower = partition_hash(commit.lease.agent_id)
    return [
        {"hash": follower, "topic": str(change.topic), "mode": change.mode}
        for change in commit.follows
    ]


def _releases(then: Then) -> list[TalkRow]:
    if not isinstance(then, Retry):
        return []
    return [{"sender": key.sender, "id": key.message_id} for key in then.release]


def _post(out: Outgoing) -> TalkRow:
    assert isinstance(out.target, TopicId)
    return {
        "topic": str(out.target),
        "hash": partition_hash(place_of(out.target)),
        "sender": out.sender,
        "id": out.message.id,
        "body": message_text(out.message, out.sender),
    }
