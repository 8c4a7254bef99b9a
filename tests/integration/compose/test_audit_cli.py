"""`callboard audit list`: what it prints for people and for programs."""

from __future__ import annotations

import pytest

from tests.integration.compose.commandline import Cli
from tests.integration.persistence.hosts import connected

ADD = """
insert into audit (tenant, principal, action, thing, before, after, outcome) values
  ('default', 'ada', 'session.relabel', 'session:desk/1', '{"title": "old"}',
    '{"title": "\\u001b[31m"}', 'done'),
  ('default', 'bob', 'run.cancel', 'run:1', null, null, 'not_found'),
  ('acme', 'eve', 'flow.remove', 'flow:refund', '{}', null, 'done')
"""


@pytest.fixture
async def cli(postgres_dsn: str, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on the test's schema, which has rows of two tenants."""
    async with connected(postgres_dsn, schema) as connection:
        await connection.execute(ADD)
    return Cli(postgres_dsn, schema, capsys)


def test_changes_of_a_tenant_are_listed_newest_first(cli: Cli) -> None:
    """By pages, or of one thing; control characters of a value are shown, not sent."""
    table, data = cli("audit", "list"), cli("audit", "list", "--json").data
    first = cli("audit", "list", "--limit", "1")

    assert [(row["principal"], row["outcome"]) for row in data] == [
        ("bob", "not_found"),
        ("ada", "done"),
    ]
    assert data[1]["before"] == {"title": "old"}
    assert "session.relabel" in table.out
    assert "\x1b" not in table.out
    assert "eve" not in table.out
    assert f"--after {data[0]['id']}" in first.out + first.err
    assert cli("audit", "list", "--after", str(data[0]["id"]), "--json").data == data[1:]
    assert cli("audit", "list", "--thing", "run:1", "--json").data == data[:1]
    [acme] = cli("audit", "list", "--tenant", "acme", "--json").data
    assert (acme["thing"], acme["before"], acme["after"]) == ("flow:refund", {}, None)
    assert "there is no such change" in cli("audit", "list", "--thing", "run:2").out
    assert cli("audit", "list", "--thing", "x" * 1_100).code == 2
