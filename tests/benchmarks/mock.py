"""What a plain program would do for the same durable writes, without any code of ours: the floor of floors.

asyncpg and four tables. A write is rows of any of them in one transaction; writes that come while one is under
way share the next (`Writer`). Payloads have the keys and bytes of ours. Nobody is checked, nothing is fenced,
nobody else is told, nothing is replayed. What a run has to wait for, one after the other:

- step: intent durable before the effect; its result rides with the next write, which is what replay needs.
  Ten steps: submit, ten intents, the end.
- ask: the question durable, then the answer with the whole run that gave it, for that run may not end twice.
  That it was taken is an input of the asker: it rides with the asker's next write.
- child: the parent's spawns in one write, each child's end with its answer, then what the parent takes with
  its own end.
- suspended run: submit, then the write that says what it waits for. Woken: the signal durable, the log read,
  for nobody has it in memory, then the end with the signal taken.
- post: the post durable, the rows of its followers by one statement, then a run each.
- message from outside: published and acknowledged by a stream that syncs, its row, then its run's end.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import asyncpg
from pydantic_core import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

T = TypeVar("T")
R = TypeVar("R")
Connection: TypeAlias = "asyncpg.Connection[Any]"
Rows: TypeAlias = "dict[str, list[tuple[Any, ...]]]"

LIMIT: Final = 1000
"""Writes of one group at most."""
VALUE: Final = {"text": "x" * 230}
HASH: Final = "0" * 16
NEWS: Final = "topic:news"
TABLES: Final = """
create table runs (run text collate "C" primary key, agent text collate "C" not null, status text not null,
  body json, result json) with (fillfactor = 60);
create table log (run text collate "C", seq int, kind text collate "C" not null,
  position text collate "C" not null, payload json not null,
  ts timestamptz not null default clock_timestamp(), primary key (run, seq));
create table inbox (agent text collate "C", sender text collate "C", id text collate "C",
  arrival bigint generated always as identity, body json, run text collate "C", primary key (agent, sender, id))
  with (fillfactor = 80);
create table answers (run text collate "C", key text collate "C", result json,
  taken boolean not null default false, primary key (run, key)) with (fillfactor = 80);
create table follows (topic text collate "C", agent text collate "C", primary key (topic, agent));
"""
PARTS: Final = {
    "begun": "insert into runs (run, agent, status, body) select a, b, 'pending', c from {}",
    "whole": "insert into runs (run, agent, status, result) select a, b, 'done', c from {}",
    "waiting": "update runs r set status = 'waiting' from {} where r.run = a",
    "ended": "update runs r set status = 'done', body = null, result = b from {} where r.run = a",
    "log": "insert into log (run, seq, kind, position, payload) select a, b, c, d, e from {}",
    "mail": "insert into inbox (agent, sender, id, body) select a, b, c, d from {}",
    "read": "update inbox i set body = null, run = d from {} where i.agent = a and i.sender = b and i.id = c",
    "answered": "insert into answers (run, key, result) select a, b, c from {}",
    "taken": "update answers s set taken = true from {} where s.run = a and s.key = b",
}
"""What a write may hold, over the columns a, b, …"""
COLUMNS: Final = {
    "begun": ("text", "text", "json"),
    "whole": ("text", "text", "json"),
    "waiting": ("text",),
    "ended": ("text", "json"),
    "log": ("text", "int", "text", "text", "json"),
    "mail": ("text", "text", "text", "json"),
    "read": ("text", "text", "text", "text"),
    "answered": ("text", "text", "json"),
    "taken": ("text", "text"),
}
SESSION: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
"""The tables are young, and everything is found by its key."""
READ_LOGS: Final = """
select l.run, l.seq, l.kind, l.payload from unnest($1::text[]) n(run)
  cross join lateral (select * from log where log.run = n.run offset 0) l order by l.run, l.seq
"""
DELIVER: Final = """
insert into inbox (agent, sender, id, body) select agent, $2, $3, $4::json from follows where topic = $1
"""


def text(value: object) -> str:
    """Return JSON."""
    return to_json(value).decode()


_numbers = itertools.count(1)


def new_id() -> str:
    """Return an id of 32 digits."""
    return f"{next(_numbers):032x}"


class Batcher(Generic[T, R]):
    """Hands calls to `flush` in groups, one at a time; calls that come meanwhile are the next group."""

    def __init__(self, flush: Callable[[list[T]], Awaitable[list[R]]]) -> None:
        self._flush = flush
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._wake = asyncio.Event()

    def call(self, args: T) -> asyncio.Future[R]:
        """Return what is done with the call's answer."""
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._wake.set()
        self._waiting.append((args, done))
        return done

    async def run(self) -> None:
        """Flush what comes, until cancelled."""
        while True:
            await self._wake.wait()
            while self._waiting:
                group, self._waiting = self._waiting[:LIMIT], self._waiting[LIMIT:]
                try:
                    answers = await self._flush([args for args, _ in group])
                except asyncpg.PostgresError as exc:
                    for _, done in group:
                        done.set_exception(exc)
                    raise
                for (_, done), answer in zip(group, answers, strict=True):
                    done.set_result(answer)
            self._wake.clear()


class Database:
    """The four tables of one measurement: one connection that writes, one that reads."""

    def __init__(self, schema: str, writing: Connection, reading: Connection) -> None:
        self.schema, self.connection, self._reading = schema, writing, reading
        self._statements: dict[tuple[str, ...], str] = {}
        self._writes: Batcher[Rows, None] = Batcher(self._commit)
        self._reads: Batcher[str, list[Any]] = Batcher(self._read)
        self.work = (self._writes.run, self._reads.run)

    def write(self, **rows: list[tuple[Any, ...]]) -> asyncio.Future[None]:
        """Return what is done when these rows are durable."""
        return self._writes.call(rows)

    def log_of(self, run: str) -> asyncio.Future[list[Any]]:
        """Return what is done with the entries of a run."""
        return self._reads.call(run)

    async def inbox_of(self, sender: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return what waits of a sender: whose it is, the sender, the message."""
        rows = await self._reading.fetch("select agent, body from inbox where sender = $1", sender)
        return [(row["agent"], sender, from_json(row["body"])) for row in rows]

    async def _commit(self, group: list[Rows]) -> list[None]:
        merged: Rows = {}
        for rows in group:
            for name, part in rows.items():
                merged.setdefault(name, []).extend(part)
        names = tuple(name for name in PARTS if merged.get(name))
        if names not in self._statements:
            self._statements[names] = statement_of(names)
        columns: list[list[Any]] = []
        for name in names:
            columns += map(list, zip(*merged[name], strict=True))
        await self.connection.fetch(self._statements[names], *columns)
        return [None] * len(group)

    async def _read(self, runs: list[str]) -> list[list[Any]]:
        entries: dict[str, list[Any]] = {run: [] for run in runs}
        for row in await self._reading.fetch(READ_LOGS, runs):
            entries[row["run"]].append((row["seq"], row["kind"], from_json(row["payload"])))
        return [entries[run] for run in runs]


def statement_of(names: Iterable[str]) -> str:
    """Return the one statement that writes rows of all these parts."""
    numbers, parts = itertools.count(1), []
    for name in names:
        # As text: the driver would look up the types of json's array first.
        arrays = ", ".join(
            f"${next(numbers)}::{'text' if type_ == 'json' else type_}[]" for type_ in COLUMNS[name]
        )
        values = ", ".join(
            f"{column}::json as {column}" if type_ == "json" else column
            for column, type_ in zip("abcde", COLUMNS[name], strict=False)
        )
        plain = ", ".join("abcde"[: len(COLUMNS[name])])
        source = f"(select {values} from unnest({arrays}) u({plain})) v"
        parts.append(PARTS[name].format(source))
    if len(parts) == 1:
        return parts[0]
    clauses = ", ".join(f"p{n} as ({part})" for n, part in enumerate(parts))
    return f"with {clauses} select 1"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    """Yield tables of its own."""
    schema = f"mock_{uuid.uuid4().hex[:12]}"
    settings = {"search_path": schema, **SESSION}
    writing, reading = [await asyncpg.connect(url, server_settings=settings) for _ in range(2)]
    await writing.execute(f"create schema {schema}; {TABLES}")
    database = Database(schema, writing, reading)
    tasks = [asyncio.ensure_future(work()) for work in database.work]
    yield database
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await writing.close()
    await reading.close()


@dataclass
class Run:
    """One run, as far as its log goes."""

    database: Database
    agent: str
    id: str = field(default_factory=new_id)
    seq: int = -1
    taken: list[tuple[str, str]] = field(default_factory=list)
    """Answers that the next write takes."""
    unwritten: list[tuple[Any, ...]] = field(default_factory=list)

    def note(self, kind: str, position: str = "", **payload: Any) -> None:
        """Have an entry ride with the next write."""
        self.seq += 1
        self.unwritten.append((self.id, self.seq, kind, position, text(payload)))

    def entries(self) -> list[tuple[Any, ...]]:
        """Return what is not written yet; whoever asks writes it."""
        noted, self.unwritten = self.unwritten, []
        return noted

    def took(self) -> list[tuple[str, str]]:
        """Return the answers that are taken by now, for the same write."""
        answers, self.taken = self.taken, []
        return answers

    async def submit(self, payload: Any) -> None:
        """Make it durable, with its message."""
        body = message(self.agent, payload, sender="submit:local")
        await self.database.write(begun=[(self.id, self.agent, text(body))])
        self.begin(body)

    def begin(self, body: dict[str, Any]) -> None:
        """Note how it began."""
        self.note("run.started", agent=self.agent)
        self.note("msg.received", "in.0", message=body, arrival=0)

    async def step(self, position: int) -> None:
        """One effect, whose intent is durable before it."""
        effect = {"effect": "step", "name": "s", "hash": HASH, "id": "0" * 64}
        self.note("effect.intent", str(position), **effect, mode="idempotent")
        await self.database.write(log=self.entries())
        self.note("effect.result", str(position), **effect, value=VALUE, status="ok")

    async def end(self, result: Any = None, **rows: list[tuple[Any, ...]]) -> None:
        """Be done; with what else is written then."""
        self.note("run.completed", output=result)
        ended = [(self.id, text(result))]
        await self.database.write(log=self.entries(), ended=ended, taken=self.took(), **rows)


def message(target: str, payload: Any, *, sender: str, **more: Any) -> dict[str, Any]:
    """Return a message as it is kept."""
    return {"v": 1, "id": new_id(), "sender": sender, **more, "payload": payload, "target": target}


async def steps(database: Database, key: object, times: int) -> None:
    """A run of so many steps."""
    run = Run(database, f"bench/{key}")
    await run.submit(None)
    for position in range(times):
        await run.step(position)
    await run.end()


async def asks(database: Database, key: object, times: int) -> None:
    """A run of so many questions, one after the other."""
    run = Run(database, f"bench/{key}")
    await run.submit(None)
    for position in range(times):
        await ask(run, position)
    await run.end()


async def ask(run: Run, position: int) -> None:
    """One question of a run, and the run that answers it."""
    target, sender = f"{run.agent}answers", f"agent:{run.agent}"
    body = message(target, VALUE, sender=sender, reply_to=run.id)
    sent = {"target": target, "message_id": body["id"], "timeout_s": 30.0, "hash": HASH}
    run.note("ask.sent", str(position), **sent)
    mail = (target, sender, body["id"], text(body))
    await run.database.write(log=run.entries(), mail=[mail], taken=run.took())
    await answer(run, body)
    run.taken.append((run.id, body["id"]))
    run.note("ask.replied", str(position), outcome="replied", result=VALUE, last_seq=-1)


async def answer(run: Run, body: dict[str, Any]) -> None:
    """The whole run of the one who is asked, in one write."""
    other = Run(run.database, body["target"])
    other.begin(body)
    other.note("effect.result", "0", effect="reply", hash=HASH, status="ok", value=True)
    other.note("run.completed", output=None)
    await run.database.write(
        log=other.entries(),
        whole=[(other.id, other.agent, "null")],
        read=[(other.agent, body["sender"], body["id"], other.id)],
        answered=[(run.id, body["id"], text(VALUE))],
    )


async def tree(database: Database, key: object, children: int) -> None:
    """A parent that spawns so many, joins them all and ends."""
    parent = Run(database, f"bench/parent{key}")
    await parent.submit(None)
    runs = [Run(database, f"bench/child{new_id()}") for _ in range(children)]
    begun = []
    for position, child in enumerate(runs):
        parent.note("child.spawned", str(position), child=child.id, agent=child.agent)
        body = message(child.agent, VALUE, sender=f"spawn:{parent.agent}")
        begun.append((child.id, child.agent, text(body)))
        child.begin(body)
    await database.write(log=parent.entries(), begun=begun)
    await asyncio.gather(
        *(child.end(VALUE, answered=[(parent.id, child.id, text(VALUE))]) for child in runs)
    )
    for position, child in enumerate(runs, children):
        parent.note(
            "child.completed", str(position), child=child.id, status="completed", result=VALUE
        )
        parent.taken.append((parent.id, child.id))
    await parent.end(children)


async def suspend(database: Database, key: object) -> Run:
    """A run that waits for a signal."""
    run = Run(database, f"bench/{key}")
    await run.submit(None)
    run.note("run.suspended", wake={"signals": ["go"]})
    await database.write(log=run.entries(), waiting=[(run.id,)])
    return run


async def wake(run: Run) -> None:
    """A signal to it, and what it does then; nothing of it is in memory."""
    key = new_id()
    await run.database.write(answered=[(run.id, key, "1")])
    log = await run.database.log_of(run.id)
    woken_run = Run(run.database, run.agent, run.id, seq=log[-1][0])
    woken_run.note("run.resumed", reason="woken")
    woken_run.note("signal.received", "0", name="go", payload=1, n=1)
    woken_run.taken.append((run.id, key))
    await woken_run.end(1)


async def post(database: Database, followers: int) -> float:
    """One post to so many, until it is in their inboxes; return the seconds."""
    await database.connection.execute(
        "insert into follows select 'news', 'bench/' || n from generate_series(1, $1) n", followers
    )
    body = message("news", VALUE, sender="client:bench")
    began = time.perf_counter()
    await database.write(mail=[("news", "client:bench", body["id"], text(body))])
    await database.connection.execute(DELIVER, "news", NEWS, body["id"], text(body))
    return time.perf_counter() - began


async def take(database: Database, agent: str, sender: str, body: dict[str, Any]) -> None:
    """The whole run that a message in an inbox starts, in one write."""
    run = Run(database, agent)
    run.begin(body)
    run.note("run.completed", output=1)
    await database.write(
        log=run.entries(), whole=[(run.id, agent, "1")], read=[(agent, sender, body["id"], run.id)]
    )
