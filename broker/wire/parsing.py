"""Subjects parsed: receiver and publisher, as far as a subject names them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from actors.errors import InvalidNameError
from actors.kernel.runtime.ids import TOPICS, AgentId, RunId, TopicId, check_name
from actors.kernel.stores.outside import Sight
from broker.errors import SubjectError
from broker.wire.subjects import HASHED, Subjects, address_of, checked_name, untoken


class AgentOrigin(NamedTuple):
    """The publisher and the target of a sourced message, parsed from the origin subject.

    Attributes:
        agent: The addressed agent.
        publisher: The outside service; the broker's permissions vouch for it.
        run_id: The run a signal is for; None for a message.
        name: The signal's name; None for a message.
        sees: For a question: what its publisher sees beside what it started.
    """

    agent: AgentId
    publisher: str
    run_id: RunId | None = None
    name: str | None = None
    sees: Sight = "own"


class ApiOrigin(NamedTuple):
    """The client and the verb of a request, parsed from its subject."""

    tenant: str
    publisher: str
    verb: str
    sees: Sight = "own"


class PostOrigin(NamedTuple):
    """The publisher and the topic of a sourced post, parsed from the origin subject."""

    topic: TopicId
    publisher: str


def parse_stored(subjects: Subjects, subject: str, claimed: AgentId | None = None) -> AgentId:
    """Return the agent for which the stream MAIL stored this.

    Args:
        subjects: The deployment's subjects.
        subject: What the server says where it is stored.
        claimed: The receiver that the message names; needed if the subject has a hash.

    Raises:
        SubjectError: It is no stored subject of this deployment, does not name the agent, or
            is not the one of the agent claimed.
    """
    agent = _parse_stored(subjects, subject) if claimed is None else claimed
    if subjects.stored(agent) != subject:
        raise SubjectError(subject, f"is not the mailbox of {agent}")
    return agent


@lru_cache(maxsize=1024)
def parse_origin(subjects: Subjects, subject: str, claimed: AgentId | None = None) -> AgentOrigin:
    """Return what the origin subject of a sourced message says.

    Args:
        subjects: The deployment's subjects.
        subject: The subject to which the external client published it.
        claimed: The receiver that the message names; needed if the subject has a hash.

    Raises:
        SubjectError: It is neither a message nor a signal of an external client, does not
            name the agent, or does not address the agent claimed.
    """
    tokens = _tokens(subjects, subject, "agent.v1")
    if tokens[3:4] not in (["ext"], ["sig"]) or len(tokens) != (5 if tokens[3] == "ext" else 7):
        raise SubjectError(
            subject, "is neither ….ext.<publisher> nor ….sig.<publisher>.<run>.<name>"
        )
    agent, publisher = _addressed(subject, tokens[:3], claimed), _publisher_of(tokens[4])
    if tokens[3] == "ext":
        return AgentOrigin(agent, publisher)
    run_id = RunId(checked_name("run", _untoken_or_hash(tokens[5])))
    return AgentOrigin(
        agent, publisher, run_id, checked_name("signal", untoken(tokens[6]))
    )  # a hash is no name


def parse_stored_post(subjects: Subjects, subject: str, claimed: AgentId | None = None) -> TopicId:
    """Return the topic to which an external client posted what the stream MAIL stored here.

    Args:
        subjects: The deployment's subjects.
        subject: What the server says where it is stored.
        claimed: Where the message says it belongs, with the names of the topic; needed where the
            subject holds a hash.

    Raises:
        SubjectError: It is no such subject of this deployment, does not name the topic, or is
            not the one of the topic claimed.
    """
    tokens = _tokens(subjects, subject, f"mail.{TOPICS}")
    if len(tokens) != 4:  # noqa: PLR2004
        raise SubjectError(subject, f"is not mail.{TOPICS}.<p>.<tenant>.<type>.<source>")
    topic = _topic(subject, tokens[1:], claimed)
    if subjects.stored_post(topic) != subject:
        raise SubjectError(subject, f"is not where posts to {topic} are stored")
    return topic


def parse_post_origin(
    subjects: Subjects, subject: str, claimed: AgentId | None = None
) -> PostOrigin:
    """Return what the origin subject of a sourced post says.

    Args:
        subjects: The deployment's subjects.
        subject: The subject to which the external client published it.
        claimed: See `parse_stored_post`.

    Raises:
        SubjectError: It is no post of an external client, does not name the topic, or is not for the topic
            claimed.
    """
    tokens = _tokens(subjects, subject, "topic.v1")
    if len(tokens) != 5 or tokens[3] != "ext":  # noqa: PLR2004
        raise SubjectError(subject, "is not topic.v1.<tenant>.<type>.<source>.ext.<publisher>")
    return PostOrigin(_topic(subject, tokens[:3], claimed), _publisher_of(tokens[4]))


def parse_ask(subjects: Subjects, subject: str, claimed: AgentId | None = None) -> AgentOrigin:
    """Return the client and the agent of a request subject.

    Args:
        subjects: The deployment's subjects.
        subject: The request's subject.
        claimed: Whom the request says it is for; needed where the subject holds a hash.

    Raises:
        SubjectError: It is no such subject, does not name the agent, or addresses another one.
    """
    tokens, sees = _sight(_tokens(subjects, subject, "ask.v1"), 4)
    if len(tokens) != 4:  # noqa: PLR2004
        raise SubjectError(subject, "is not ask.v1.<tenant>.<type>.<key>.<publisher>[.tenant]")
    agent, publisher = _addressed(subject, tokens[:3], claimed), _publisher_of(tokens[3])
    return AgentOrigin(agent, publisher, sees=sees)


def parse_api(subjects: Subjects, subject: str) -> ApiOrigin:
    """Return the client and the verb of a request to the hosts.

    Raises:
        SubjectError: It is no such subject.
    """
    tokens, sees = _sight(_tokens(subjects, subject, "api.v1"), 3)
    if len(tokens) != 3:  # noqa: PLR2004
        raise SubjectError(subject, "is not api.v1.<tenant>.<publisher>.<verb>[.tenant]")
    try:
        tenant = check_name("tenant", untoken(tokens[0]))
    except InvalidNameError as exc:
        raise SubjectError(subject, str(exc)) from exc
    return ApiOrigin(tenant, _publisher_of(tokens[1]), untoken(tokens[2]), sees)


def mailbox_of(subjects: Subjects, subject: str) -> AgentId:
    """Return the agent of this mailbox; for a hashed key, a stand-in of the same shard.

    Raises:
        SubjectError: It is no stored subject of this deployment.
    """
    return _parse_stored(subjects, subject, hashes=True)


@lru_cache(maxsize=1024)
def _parse_stored(subjects: Subjects, subject: str, *, hashes: bool = False) -> AgentId:
    tokens = _tokens(subjects, subject, "mail")
    if len(tokens) != 4:  # noqa: PLR2004
        raise SubjectError(subject, "is not of the form mail.<type>.<p>.<tenant>.<key>")
    type_, _, tenant, key = tokens
    agent = _agent(subject, (tenant, type_, key), hashes=hashes)
    if subjects.stored(agent) != subject:
        raise SubjectError(subject, f"has another partition than {agent}")
    return agent


def _addressed(subject: str, address: Sequence[str], claimed: AgentId | None) -> AgentId:
    """Return the agent of these tokens. A token may be a hash, so `claimed` is compared with them."""
    agent = _agent(subject, address) if claimed is None else claimed
    if address_of(agent) != ".".join(address):
        raise SubjectError(subject, f"does not address {agent}")
    return agent


def _topic(subject: str, address: Sequence[str], claimed: AgentId | None) -> TopicId:
    place = _addressed(subject, address, claimed)
    return TopicId(place.type, place.key, place.tenant)


def _tokens(subjects: Subjects, subject: str, head: str) -> list[str]:
    prefix = subjects.prefixed(f"{head}.")
    if not subject.startswith(prefix):
        raise SubjectError(subject, f"does not begin with {prefix}")
    return subject[len(prefix) :].split(".")


def _sight(tokens: list[str], count: int) -> tuple[list[str], Sight]:
    """Return the tokens of a request without the one behind them, which says what its publisher sees."""
    if len(tokens) == count + 1 and tokens[-1] == "tenant":
        return tokens[:-1], "tenant"
    return tokens, "own"


def _agent(subject: str, address: Sequence[str], *, hashes: bool = False) -> AgentId:
    read = _untoken_or_hash if hashes else untoken
    tenant, type_, key = map(read, address)
    try:
        return AgentId(type_, key, tenant)
    except InvalidNameError as exc:
        raise SubjectError(subject, str(exc)) from exc


def _untoken_or_hash(text: str) -> str:
    return text if HASHED.fullmatch(text) else untoken(text)


def _publisher_of(text: str) -> str:
    """Return the publisher of a token; a hashed one is compared as it is."""
    return checked_name("publisher", _untoken_or_hash(text))
