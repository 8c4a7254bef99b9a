"""Random programs of clients that send messages in sessions, and of readers that connect and disconnect."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tests.model.dialogue import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS: Final = (
    "say",
    "say",
    "hold",
    "hold",
    "hold",
    "ask",
    "tell",
    "crack",
    "fail",
    "signal",
    "child",
)
CONFLICTS: Final = ("queue", "queue", "queue", "queue", "join", "reject", "interrupt")
ACTS: Final = {"start": 44, "go": 22, "cancel": 8, "switch": 9, "delete": 6, "crash": 6, "again": 5}
"""Weights of the acts."""
PLAIN: Final = 5
"""One of this many programs is plain."""
FOREIGN: Final = 999
"""The number of a node that a session does not have."""


@dataclass(frozen=True, slots=True)
class Act:
    """One act of a client while all runs wait. `n` selects among the present objects.

    Attributes: what: ``start``, ``again`` (the same message once more), ``cancel``, ``go`` (the
    awaited event comes), ``switch``, ``delete`` or ``crash``. who: The client; one with an odd
    number is in another process than the host. session: In which session. kind: Prefix of the
    message. conflict: See `AgentRuntime.start`. parent: A node to continue from; None: none is
    named.
    """

    what: str
    n: int = 0
    who: int = 0
    session: int = 0
    kind: str = "say"
    conflict: str = "queue"
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of a session that is disconnected repeatedly.

    Attributes: session: Which. who: In the process of which client. cuts: For each connection: the
    number of acts before it, and the number of events read in it.
    """

    session: int
    who: int
    cuts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Dialogues:
    """A program. One that is `plain` has answers only, and its windows are cut."""

    acts: tuple[Act, ...]
    readers: tuple[Reader, ...] = ()
    is_plain: bool = False


def dialogues(seed: int | str, *, most: int = 24) -> Dialogues:
    """Return the random program of a seed: 1 to 4 clients, 1 to 3 sessions, 1 to 4 readers."""
    chance = random.Random(f"dialogues {seed}")
    clients, sessions = chance.randint(1, 4), chance.randint(1, 3)
    is_plain = not chance.randrange(PLAIN)
    acts = [_act(chance, clients, sessions) for _ in range(chance.randint(6, most))]
    if is_plain:
        acts = [replace(act, kind="say", conflict="queue", session=0) for act in acts]
    readers = [_reader(chance, clients, sessions) for _ in range(chance.randint(1, 4))]
    return Dialogues(tuple(acts), tuple(readers), is_plain)


def _act(chance: random.Random, clients: int, sessions: int) -> Act:
    [what] = chance.choices([*ACTS], [*ACTS.values()])
    parent = chance.choice((None, None, None, None, None, ROOT, *range(6), FOREIGN))
    return Act(
        what,
        ROOT if what == "switch" and not chance.randrange(8) else chance.randrange(8),
        chance.randrange(clients),
        chance.randrange(sessions),
        chance.choice(KINDS),
        chance.choice(CONFLICTS),
        parent,
    )


def _reader(chance: random.Random, clients: int, sessions: int) -> Reader:
    cuts = [(chance.randrange(4), chance.randint(1, 5)) for _ in range(chance.randrange(6))]
    return Reader(chance.randrange(sessions), chance.randrange(clients), tuple(cuts))


def shrunk(program: Dialogues, is_wrong: Callable[[Dialogues], bool]) -> Dialogues:
    """Return a part of a failing program from which no act and no reader can be removed."""
    n = 0
    while n < len(program.acts) + len(program.readers):
        at = n - len(program.acts)
        if at < 0:
            smaller = replace(program, acts=program.acts[:n] + program.acts[n + 1 :])
        else:
            readers = program.readers[:at] + program.readers[at + 1 :]
            smaller = replace(program, readers=readers)
        if is_wrong(smaller):
            program = smaller
        else:
            n += 1
    return program
