"""`callboard limits`: what it prints for people and for programs, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from compose._commands.operate.schedules import parse_rate
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def cli(postgres_dsn: str, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on the test's schema."""
    return Cli(postgres_dsn, schema, capsys)


@pytest.mark.item(218)
def test_a_limit_is_set_listed_and_deleted(cli: Cli) -> None:
    """As JSON with all that it allows; deleting what is not there ends with 4."""
    output = cli(
        "limits", "set", "type:desk", "--max-concurrent", "5", "--rate", "90/m", "--burst", "20"
    )
    assert output.out == "type:desk: at most 5 at once; 1.5 starts/s, bursts of 20\n"
    assert cli("limits", "set", "tenant:acme", "--weight", "3", "--json").data["weight"] == 3

    limits = cli("limits", "list", "--json").data
    assert [limit["scope"] for limit in limits] == ["tenant:acme", "type:desk"]
    assert limits[1] == {
        "scope": "type:desk",
        "max_concurrent": 5,
        "rate_per_s": 1.5,
        "burst": 20,
        "weight": 1,
        "held": 0,
        "waiting": 0,
        "hosts": 0,
    }
    assert "1.5/s" in cli("limits", "list").out
    assert cli("limits", "delete", "type:desk").code == 0
    assert cli("limits", "delete", "type:desk").code == 4
    assert cli("limits", "delete", "tenant:acme", "--json").data == {"deleted": "tenant:acme"}
    assert cli("limits", "list").out == "no limits\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["type:desk"], "--max-concurrent"),
        (["desk", "--max-concurrent", "1"], "type:NAME"),
        (["type:desk", "--max-concurrent", "-1"], "max_concurrent"),
        (["type:desk", "--rate", "fast"], "10/s"),
        (["type:desk", "--rate", "0/s"], "rate"),
        (["type:desk", "--burst", "3", "--max-concurrent", "1"], "burst"),
        (["type:desk", "--weight", "2"], "weight"),
    ],
)
def test_an_invalid_limit_of_the_command_is_refused(
    cli: Cli, arguments: Sequence[str], words: str
) -> None:
    """With 2, and a sentence that names what is wrong."""
    output = cli("limits", "set", *arguments)

    assert output.code == 2
    assert words in output.err


@pytest.mark.parametrize(
    ("text", "rate"), [("10/s", 10), ("10", 10), ("90/m", 1.5), ("7200/h", 2), ("0.5/s", 0.5)]
)
def test_rates_are_per_second_minute_hour_or_day(text: str, rate: float) -> None:
    """In starts per second."""
    assert parse_rate(text) == rate
