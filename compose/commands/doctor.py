"""`callboard doctor`: is everything all right?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.kernel.runtime.ids import HostIncarnation
from compose.commands.exits import Exit
from compose.commands.output import print_json, print_table, say
from compose.commands.target import HERE, Target
from compose.diagnosis import diagnose
from persistence.postgres import StoreSettings
from persistence.postgres.opening import wait_for_server

if TYPE_CHECKING:
    from compose.diagnosis import Level

_MARKS: dict[Level, str] = {"ok": "✓", "note": "·", "wrong": "✗"}


async def doctor(*, target: Target = HERE) -> int:
    """Look at the server, the hosts and what waits; exit with 1 when something needs you.

    Looks at: server version, durability (fsync, synchronous_commit), clock, schema version, hosts
    alive, shards without an owner, types with waiting runs or messages that nobody serves, parked
    runs, dead letters. Changes nothing.

    Example: `callboard doctor --data ./data`
    """
    async with target.server() as (url, settings):
        store_settings = StoreSettings(
            url=url, owner=HostIncarnation("doctor"), schema=settings.db_schema,
            start_wait_s=settings.start_wait_s,
        )  # fmt: skip
        connection = await wait_for_server(store_settings)
        try:
            findings = await diagnose(connection)
        finally:
            await connection.close(timeout=2)
    wrong = [finding for finding in findings if finding.level == "wrong"]
    if target.json:
        checks = [
            {
                "check": one.check, "level": one.level, "found": one.found,
                "remedy": one.remedy or None, **one.data,
            }
            for one in findings
        ]  # fmt: skip
        print_json({"healthy": not wrong, "checks": checks})
    else:
        rows = [(_MARKS[one.level], one.check, one.found, one.remedy) for one in findings]
        print_table(("", "check", "found", "what to do"), rows, empty="")
        say("all is well" if not wrong else f"{len(wrong)} thing(s) need you")
    return Exit.FAILED if wrong else Exit.OK
