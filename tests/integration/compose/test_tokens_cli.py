"""`callboard tokens`: what it prints for people and for programs, and what it refuses."""

from __future__ import annotations

import re

import pytest

from tests.integration.compose.commandline import Cli


@pytest.fixture
def cli(postgres_dsn: str, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on the test's schema."""
    return Cli(postgres_dsn, schema, capsys)


def test_a_token_is_made_shown_once_listed_and_revoked(cli: Cli) -> None:
    """The secret alone is the line on stdout; nobody is shown it again."""
    create_output = cli("tokens", "create", "ada", "--expires", "90d")
    assert create_output.code == 0
    assert re.fullmatch(r"cb_[\w-]{43}\n", create_output.out)
    assert "principal ada of tenant default: sessions:own, until 20" in create_output.err
    secret = create_output.out.strip()
    shop = cli(
        *("tokens", "create", "shop", "--tenant", "acme", "--principal", "web", "--json"),
        *("--scope", "sessions:all", "--scope", "cleanup"),
    ).data
    assert shop["token"].startswith("cb_")
    assert (shop["tenant"], shop["principal"]) == ("acme", "web")
    assert (shop["scopes"], shop["expires_at"]) == (["sessions:all", "cleanup"], None)
    list_output = cli("tokens", "list", "--json")
    assert [(row["name"], row["state"], row["last_used_at"]) for row in list_output.data] == [
        ("ada", "valid", None),
        ("shop", "valid", None),
    ]
    table = cli("tokens", "list")
    assert "never" in table.out
    for text in (create_output.err, list_output.out, table.out):
        assert secret not in text
        assert secret[3:] not in text
    assert (
        cli("tokens", "revoke", "ada").out
        == f"token ada ({list_output.data[0]['id']}) is revoked\n"
    )
    assert cli("tokens", "revoke", shop["id"], "--json").data["state"] == "revoked"
    assert [row["state"] for row in cli("tokens", "list", "--json").data] == ["revoked"] * 2
    assert cli("tokens", "create", "ada").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["create", "ada", "--scope", "all"], 2, "sessions:all"),
        (["create", "ada", "--expires", "soon"], 2, "30d"),
        (["create", "ada", "--tenant", "a b"], 2, "tenant"),
        (["create", "x" * 1_100], 2, "name of a token"),
        (["create", "taken"], 2, "tokens revoke"),
        (["revoke", "nobody"], 4, "there is no token nobody"),
        (["revoke", "a\x00b"], 4, "there is no token"),
    ],
)
def test_what_cannot_be_done_is_refused(
    cli: Cli, arguments: list[str], code: int, words: str
) -> None:
    """With what to say instead."""
    if "taken" in arguments:
        assert cli("tokens", "create", "taken").code == 0
    output = cli("tokens", *arguments)

    assert (output.code, output.out) == (code, "")
    assert words in output.err
