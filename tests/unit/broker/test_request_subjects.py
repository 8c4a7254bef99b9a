"""Subjects of requests and of live events: built and taken apart, never guessed."""

from __future__ import annotations

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from broker import SubjectError, Subjects
from broker._wire.subjects import parse_api, parse_ask

RUN = RunId("0" * 32)
LONG = AgentId("desk", "k" * 200)


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_a_question_tells_agent_and_publisher(namespace: str) -> None:
    """Whatever their names."""
    subjects, agent = Subjects(namespace), AgentId("desk.eu", "a b/c", "acme")
    subject = subjects.ask(agent, "crm é")

    assert subject == subjects.prefixed("ask.v1.acme.desk%2Eeu.a%20b%2Fc.crm%20%C3%A9")
    assert parse_ask(subjects, subject)[:2] == (agent, "crm é")


def test_a_question_to_a_long_key_needs_the_right_claim() -> None:
    """The subject holds a hash, which is compared with what is claimed."""
    subjects = Subjects()
    subject = subjects.ask(LONG, "crm")

    assert parse_ask(subjects, subject, LONG).agent == LONG
    with pytest.raises(SubjectError, match="Actor-Target"):
        parse_ask(subjects, subject)
    with pytest.raises(SubjectError, match="does not address"):
        parse_ask(subjects, subject, AgentId("desk", "other"))


def test_a_request_tells_tenant_publisher_and_verb() -> None:
    """All three from the subject."""
    subjects = Subjects("shop")
    subject = subjects.api("acme", "crm", "result")

    assert subject == "shop.api.v1.acme.crm.result"
    assert tuple(parse_api(subjects, subject)) == ("acme", "crm", "result", "own")


def test_who_sees_all_of_the_tenant_says_so_in_the_subject() -> None:
    """By a token at the end, for which the server's permissions vouch; else it sees its own."""
    subjects, agent = Subjects(), AgentId("desk", "a", "acme")
    ask, api = subjects.ask(agent, "crm", "tenant"), subjects.api("acme", "crm", "cancel", "tenant")

    assert (ask, api) == ("ask.v1.acme.desk.a.crm.tenant", "api.v1.acme.crm.cancel.tenant")
    assert parse_ask(subjects, ask) == parse_ask(subjects, ask[:-7])._replace(sees="tenant")
    assert parse_api(subjects, api) == parse_api(subjects, api[:-7])._replace(sees="tenant")
    assert parse_ask(subjects, ask[:-7]).sees == parse_api(subjects, api[:-7]).sees == "own"


@pytest.mark.parametrize(
    "subject",
    [
        "ask.v1.default.desk.a",
        "ask.v1.default.desk.a.crm.x",
        "ask.v1.default.-.a.crm",
        "ask.v1.default.desk.%41.crm",
        "ask.v1.default.desk..crm",
        "ask.v2.default.desk.a.crm",
        "shop.ask.v1.default.desk.a.crm",
    ],
)
def test_a_malformed_question_is_refused(subject: str) -> None:
    """Too short, too long, no names, not canonical, of another version or namespace."""
    with pytest.raises(SubjectError):
        parse_ask(Subjects(), subject)


@pytest.mark.parametrize(
    "subject",
    [
        "api.v1.default.crm",
        "api.v1.default.crm.result.x",
        "api.v1.-.crm.result",
        "api.v1.default..result",
        "api.v1.default.crm.%72esult",
        "ask.v1.default.crm.result",
    ],
)
def test_a_malformed_request_is_refused(subject: str) -> None:
    """As above."""
    with pytest.raises(SubjectError):
        parse_api(Subjects(), subject)


def test_live_events_have_a_subject_for_each_run() -> None:
    """The end's is below it, and no run's."""
    subjects = Subjects()
    live = subjects.live(AgentId("desk", "a"), RUN)

    assert live == f"run.v1.default.desk.a.{RUN}"
    assert subjects.live_end(AgentId("desk", "a"), RUN) == f"{live}.end"
