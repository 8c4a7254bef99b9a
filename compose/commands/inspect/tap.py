"""`callboard tap`: watch the live traffic on the broker."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.text import Text

from actors.kernel.runtime.ids import AgentId
from actors.runtime.loop.clock import SystemClock
from compose.commands.options import BROKER, Flag, Limit, NatsTarget, Seconds, TypeOpt
from compose.commands.output import Exit, print_json
from compose.commands.terminal import console
from compose.tools.traffic import Filter, Seen, listen

STYLES = {
    "dead": "red",
    "ask": "cyan",
    "answer": "cyan",
    "post": "magenta",
    "live": "dim",
    "signal": "yellow",
}
_BODY = 400


async def tap(
    pattern: str | None = None,
    /,
    *,
    type_: TypeOpt = None,
    agent: str | None = None,
    run: str | None = None,
    body: Flag = False,
    limit: Limit | None = None,
    seconds: Seconds | None = None,
    target: NatsTarget = BROKER,
) -> int:
    """Watch live traffic, one line each: messages, posts, signals, questions, dead letters and tokens.

    The command changes nothing on the broker, and shows no earlier traffic. Messages between agents of one
    host may skip the broker (CALLBOARD_LOCAL_DELIVERY). Content is shown only with `--body`. The user
    of the broker needs the permission to subscribe to the watched subjects. Ctrl-C ends the command.

    Examples:
    `callboard tap --nats-url nats://127.0.0.1:4222`;
    `callboard tap --agent desk/main --body --data ./data`;
    `callboard tap 'dead.v1.>' --json`

    Parameters
    ----------
    pattern
        A subject pattern of NATS, without the namespace. Default: all traffic of agents.
    type_
        Only agents of this type.
    agent
        Only this agent, TYPE/KEY or TENANT:TYPE/KEY.
    run
        Only live pieces of this run, and signals to it.
    body
        Show the content.
    limit
        End after this number of lines.
    seconds
        End after this number of seconds.
    """
    wanted = Filter(
        pattern=pattern, type=type_, agent=None if agent is None else AgentId.parse(agent), run=run
    )
    url, settings = target.found()
    out, shown = console(), 0
    try:
        async with asyncio.timeout(seconds), listen(url, settings, wanted) as traffic:
            async for seen in traffic:
                if target.json:
                    at = SystemClock().now().isoformat()
                    print_json({"at": at, **seen.to_json(body=body)}, compact=True)
                else:
                    _show(out, seen, body=body)
                shown += 1
                if shown == limit:
                    break
    except TimeoutError:
        pass
    return Exit.OK


def _show(out: Console, seen: Seen, *, body: bool) -> None:
    at = SystemClock().now().strftime("%H:%M:%S.%f")[:12]
    line = Text(f"{at}  ", "dim")
    line += Text(f"{seen.kind:7}", STYLES.get(seen.kind, "green"))
    line += Text(f" {seen.place}", "bold")
    facts = {"from": seen.sender, "run": seen.run, "name": seen.name, "id": seen.message_id}
    facts["reason"] = seen.reason
    line += Text("".join(f"  {name} {value}" for name, value in facts.items() if value))
    line += Text(f"  {seen.size} B", "dim")
    if body:
        text = seen.content_text()
        line += Text(f"  {text if len(text) <= _BODY else text[: _BODY - 1] + '…'}")
    out.print(line, soft_wrap=True)
