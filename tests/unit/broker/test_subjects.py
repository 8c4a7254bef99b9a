"""Subjects: what is built can be taken apart, and nothing else."""

from __future__ import annotations

import pytest

from actors._kernel.runtime.ids import (
    TOPICS,
    AgentId,
    RunId,
    ShardId,
    TopicId,
    instance_shard,
    partition_shard,
    topic_shard,
    undeclared_shard,
)
from actors.errors import ContractError, InvalidNameError
from broker._errors import SubjectError
from broker._wire.subjects import (
    AgentOrigin,
    PostOrigin,
    Subjects,
    has_hash,
    mailbox_of,
    parse_origin,
    parse_post_origin,
    parse_stored,
    parse_stored_post,
    untoken,
)

PLAIN = Subjects()
NAMED = Subjects("ns-1")
DESK = AgentId("desk", "1", "acme")
ODD = AgentId("desk", "a.b*c> é%/\u2028", "acme")
LONG = AgentId("desk", "k" * 200)
RUN = RunId("a" * 32)


def test_subjects_are_those_of_the_design() -> None:
    """Each party has its own pattern, and a namespace goes before all of them."""
    assert PLAIN.inbox(DESK) == "agent.v1.acme.desk.1.in"
    assert PLAIN.external(DESK, "crm") == "agent.v1.acme.desk.1.ext.crm"
    assert PLAIN.signal(DESK, "crm", RUN, "go") == f"agent.v1.acme.desk.1.sig.crm.{RUN}.go"
    assert PLAIN.topic(TopicId("news", "bbc.uk")) == "topic.v1.default.news.bbc%2Euk"
    assert PLAIN.dead(DESK) == "dead.v1.acme.desk.1"
    assert PLAIN.host("h-1") == "host.v1.h-1"
    assert NAMED.inbox(DESK) == "ns-1.agent.v1.acme.desk.1.in"
    assert (PLAIN.stream("MAIL"), NAMED.stream("MAIL")) == ("MAIL", "ns-1_MAIL")


@pytest.mark.parametrize("subjects", [PLAIN, NAMED, Subjects("mail")])
def test_a_stored_subject_names_the_tenant_for_its_share(subjects: Subjects) -> None:
    """Of mail and of posts, by its token; what is stored otherwise is nobody's."""
    topic = TopicId("news", "bbc", "acme")

    assert subjects.tenant_token_of(subjects.stored(DESK).encode()) == b"acme"
    assert subjects.tenant_token_of(subjects.stored_post(topic).encode()) == b"acme"
    assert subjects.tenant_token_of(subjects.stored(ODD).encode()) == b"acme"
    assert subjects.tenant_token_of(b"mail") == b""


@pytest.mark.parametrize("subjects", [PLAIN, NAMED, Subjects(partitions=3)])
@pytest.mark.parametrize("topic", [TopicId("news", "bbc.uk"), TopicId("a.b", "é* /:>", "acme")])
def test_the_subjects_of_a_post_tell_topic_and_publisher(
    subjects: Subjects, topic: TopicId
) -> None:
    """Where it was published and where it is stored say the same, and the shard's filter has it."""
    stored, origin = subjects.stored_post(topic), subjects.external_post(topic, "crm é")
    shard = topic_shard(topic, subjects.partitions)

    assert parse_stored_post(subjects, stored) == topic
    assert parse_post_origin(subjects, origin) == PostOrigin(topic, "crm é")
    assert subjects.is_post(stored)
    assert not subjects.is_post(subjects.stored(DESK))
    assert stored.startswith(subjects.filter_of(shard).removesuffix(">"))
    assert origin == subjects.topic(topic) + ".ext.crm%20%C3%A9"


@pytest.mark.parametrize(
    "subject",
    [
        *("mail.~topic.3.acme.news", "mail.news.3.acme.bbc", "mail.~topic.x.acme.news.bbc"),
        *("mail.~topic.0.acme.news.%41", "mail.~topic.0.~x.news.bbc", "mail.~topic.0.a.n.b.c"),
    ],
)
def test_no_other_stored_subject_is_that_of_a_post(subject: str) -> None:
    """Another partition, another number of tokens or another spelling is refused."""
    with pytest.raises(SubjectError):
        parse_stored_post(PLAIN, subject)


@pytest.mark.parametrize(
    "subject",
    [
        *(
            "topic.v1.acme.news.bbc",
            "topic.v1.acme.news.bbc.in.crm",
            "agent.v1.acme.news.bbc.ext.crm",
        ),
        *("topic.v1.acme.news.bbc.ext", "topic.v1.acme.~x.bbc.ext.crm", "topic.v1.a.b.c.ext.crm.x"),
    ],
)
def test_no_other_origin_is_that_of_a_post(subject: str) -> None:
    """Hosts' own posts, messages to agents and what no name is are refused."""
    with pytest.raises(SubjectError):
        parse_post_origin(PLAIN, subject)


def test_a_topic_behind_a_hash_needs_a_claim() -> None:
    """The claim is hashed and compared, for both subjects."""
    topic = TopicId("news", "k" * 200)
    stored, origin = PLAIN.stored_post(topic), PLAIN.external_post(topic, "crm")

    assert parse_stored_post(PLAIN, stored, AgentId("news", "k" * 200)) == topic
    assert parse_post_origin(PLAIN, origin, AgentId("news", "k" * 200)).topic == topic
    for claimed in (None, AgentId("news", "k" * 201)):
        with pytest.raises(SubjectError):
            parse_stored_post(PLAIN, stored, claimed)
        with pytest.raises(SubjectError):
            parse_post_origin(PLAIN, origin, claimed)


def test_no_agent_has_the_type_of_topics() -> None:
    """So no agent's mail is ever taken for a post."""
    with pytest.raises(InvalidNameError):
        AgentId(TOPICS, "1")


@pytest.mark.parametrize("subjects", [PLAIN, NAMED, Subjects(partitions=3)])
@pytest.mark.parametrize("agent", [DESK, ODD, AgentId("a.b", "x", "t.1"), AgentId("t", "h-1")])
def test_a_stored_subject_tells_its_agent(subjects: Subjects, agent: AgentId) -> None:
    """What is escaped comes back, also dots, stars, spaces and other scripts."""
    assert parse_stored(subjects, subjects.stored(agent)) == agent
    assert mailbox_of(subjects, subjects.stored(agent)) == agent


def test_a_long_key_is_a_hash_that_only_a_claim_can_tell() -> None:
    """A hash cannot be inverted, so the claim is hashed and compared."""
    subject = PLAIN.stored(LONG)

    assert has_hash(LONG)
    assert not has_hash(ODD)
    assert parse_stored(PLAIN, subject, LONG) == LONG
    with pytest.raises(SubjectError, match="Actor-Target"):
        parse_stored(PLAIN, subject)
    with pytest.raises(SubjectError, match="not the mailbox"):
        parse_stored(PLAIN, subject, AgentId("desk", "k" * 201))
    assert PLAIN.stored(mailbox_of(PLAIN, subject)) == subject


def test_a_key_that_looks_like_a_hash_needs_a_claim_too() -> None:
    """A key of the form of a hash is never taken for the name behind one."""
    literal = AgentId("desk", "h-" + "0" * 32)
    assert has_hash(literal)
    with pytest.raises(SubjectError):
        parse_stored(PLAIN, PLAIN.stored(literal))
    assert parse_stored(PLAIN, PLAIN.stored(literal), literal) == literal


@pytest.mark.parametrize("agent", [DESK, ODD])
def test_an_origin_tells_agent_publisher_run_and_name(agent: AgentId) -> None:
    """Everything that may be trusted about an outsider's message is in its origin subject."""
    external, signal = NAMED.external(agent, "crm.eu"), NAMED.signal(agent, "crm", RUN, "a.b")

    assert parse_origin(NAMED, external) == AgentOrigin(agent, "crm.eu")
    assert parse_origin(NAMED, signal) == AgentOrigin(agent, "crm", RUN, "a.b")


def test_an_origin_with_a_hash_needs_the_right_claim() -> None:
    """The claim is compared with the address."""
    origin = PLAIN.external(LONG, "crm")

    assert parse_origin(PLAIN, origin, LONG) == AgentOrigin(LONG, "crm")
    for claimed in (None, DESK):
        with pytest.raises(SubjectError):
            parse_origin(PLAIN, origin, claimed)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "mail",
        "mail.desk.1.acme",
        "mail.desk.1.acme.1.2",
        "mail.desk.x.acme.1",
        "mail.desk.99.acme.1",
        "mail.desk.*.acme.1",
        "mail.desk.12.acme.*",
        "mail.desk.12.acme.>",
        "mail.desk.12.acme.%61",
        "mail.desk.12.acme.%2e",
        "mail.desk.12.acme.%FF",
        "mail.desk.12.acme.%00",
        "mail.desk.12.acme.%",
        "mail.desk.12.acme.",
        "mail.desk.12.acme.~fan",
        "mail.%2Edesk.12.acme.1",
        "agent.v1.acme.desk.1.in",
        "ns-1.mail.desk.12.acme.1",
    ],
)
def test_a_malformed_stored_subject_is_refused(subject: str) -> None:
    """Only canonical subjects with the right partition name an agent."""
    with pytest.raises(SubjectError):
        parse_stored(PLAIN, subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "agent.v1.acme.desk.1.in",
        "agent.v1.acme.desk.1.ext",
        "agent.v1.acme.desk.1.ext.crm.x",
        "agent.v1.acme.desk.1.sig.crm.run",
        "agent.v1.acme.desk.1.sig.crm.run.name.x",
        "agent.v1.acme.desk.1.ext.*",
        "agent.v1.acme.desk.1.ext.%00",
        "agent.v1.acme.desk.*.ext.crm",
        "agent.v2.acme.desk.1.ext.crm",
        "topic.v1.acme.news.bbc.ext.crm",
        "mail.desk.1.acme.1",
        f"agent.v1.acme.desk.1.sig.crm.run.h-{'0' * 32}",
    ],
)
def test_a_malformed_origin_is_refused(subject: str) -> None:
    """Neither mail of hosts nor posts count as an outsider's message."""
    with pytest.raises(SubjectError):
        parse_origin(PLAIN, subject)


def test_each_shard_has_one_filter() -> None:
    """A partition and an undeclared type are prefixes, an instance is one exact subject."""
    assert PLAIN.filter_of(partition_shard("a.b", 3)) == "mail.a%2Eb.3.>"
    assert PLAIN.filter_of(undeclared_shard("desk")) == "mail.desk.>"
    assert NAMED.filter_of(instance_shard(ODD)) == NAMED.stored(ODD)
    with pytest.raises(ContractError):
        PLAIN.filter_of(ShardId("x:desk"))


@pytest.mark.parametrize("namespace", ["A", "a.b", "a b", "*", "x" * 33, "é"])
def test_a_namespace_is_one_plain_token(namespace: str) -> None:
    """What would change the grammar of subjects is refused."""
    with pytest.raises(InvalidNameError):
        Subjects(namespace)


@pytest.mark.parametrize("publisher", ["", "a\nb", "\x00", "x" * 257])
def test_a_publisher_is_printable(publisher: str) -> None:
    """A publisher's name becomes a sender, so it has the rule of keys."""
    with pytest.raises(SubjectError):
        PLAIN.external(DESK, publisher)


def test_untoken_is_the_inverse_of_token() -> None:
    """Runs of escaped bytes are one text."""
    assert untoken("a%2Eb%C3%A9") == "a.bé"
