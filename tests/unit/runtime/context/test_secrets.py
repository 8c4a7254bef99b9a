"""Handles of secrets, where their values come from, and how they are taken out of results."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import pytest

from actors._kernel.secrets import Secret, UnknownSecretError
from actors._runtime.verbs.secrets import EnvSecrets, FileSecrets, Secrets, redacted
from actors.errors import InvalidNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class Fixed:
    """A `SecretProvider` of these values."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    async def get(self, name: str) -> str | None:
        """The value."""
        return self._values.get(name)


@pytest.mark.parametrize("name", ["", "api_key", "A/B", "../A", "1A", "A" * 65, "A\n", "Ä"])
def test_a_name_can_lead_nowhere_else(name: str) -> None:
    """Not to another file, and not to another variable."""
    with pytest.raises(InvalidNameError):
        Secret(name)


async def test_a_variable_has_a_prefix_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the host's own settings, with their passwords, cannot be asked for."""
    monkeypatch.setenv("CALLBOARD_POSTGRES_URL", "postgresql://u:secret@h/d")
    monkeypatch.setenv("CALLBOARD_SECRET_TOKEN", "t-1")

    assert await EnvSecrets().get("TOKEN") == "t-1"
    assert await EnvSecrets().get("CALLBOARD_POSTGRES_URL") is None


async def test_files_are_read_anew(tmp_path: Path) -> None:
    """Without their last newline; a changed file is a rotated secret; a missing or empty one is unknown."""
    secrets = Secrets(FileSecrets(tmp_path))
    (tmp_path / "EMPTY").write_text("\n")
    for value in ("first", "second"):
        (tmp_path / "TOKEN").write_text(f"{value}\r\n")
        assert await secrets.values([Secret("TOKEN")]) == {"TOKEN": value}
    for name in ("MISSING", "EMPTY"):
        with pytest.raises(UnknownSecretError, match=f"CALLBOARD_SECRET_{name}"):
            await secrets.values([Secret(name)])
    for name in ("../TOKEN", "/etc/hostname", "..", "TOKEN\x00"):
        with pytest.raises(InvalidNameError):
            await FileSecrets(tmp_path / "folder").get(name)


def test_values_are_taken_out_everywhere() -> None:
    """Of texts, keys, lists; short values are left, they would hit what is none."""
    secrets = {"TOKEN": "a b/c&d", "PIN": "1"}

    redacted_value = redacted(
        {"k": ["x a b/c&d", {"a b/c&d": "a%20b%2Fc%26d"}], "n": 11, "p": "1"}, secrets
    )

    hidden = "[secret TOKEN]"
    assert redacted_value == {"k": [f"x {hidden}", {hidden: hidden}], "n": 11, "p": "1"}


@pytest.mark.parametrize(
    "write",
    [
        quote,
        quote_plus,
        json.dumps,
        repr,
        "{}".format,
        lambda text: quote(text, safe=""),
        lambda text: re.sub("%..", lambda escape: escape[0].lower(), quote(text)),
    ],
)
def test_a_value_is_found_however_a_library_writes_it(write: Callable[[str], str]) -> None:
    """In a URL, in JSON inside of a text, in what Python shows of it."""
    value = 'a/b +c&d\n"e\\'
    redacted_text = redacted(f"<{write(value)}>", {"KEY": value})

    assert redacted_text in ("<[secret KEY]>", '<"[secret KEY]">', "<'[secret KEY]'>")


def test_a_value_inside_of_another_one_gives_nothing_away() -> None:
    """The longest goes first, whatever the order, and what was put in place is not looked at again."""
    secrets = {"SHORT": "abcdef", "LONG": "abcdefghi", "WORD": "secret"}

    assert redacted("abcdefghi abcdef", secrets) == "[secret LONG] [secret SHORT]"


async def test_an_error_longer_than_is_kept_gives_no_part_away() -> None:
    """Where its text is cut off, too; its class stays."""
    value = "sk-" + "x" * 40
    secrets = Secrets(Fixed({"KEY": value, "WORD": "message"}))

    async def fails(opened: dict[Any, Any]) -> None:
        raise ValueError(opened["key"] + "." * 7_940 + opened["key"])

    sealed = secrets.seal({"key": Secret("KEY"), "word": Secret("WORD")})
    assert sealed is not None
    with pytest.raises(ValueError, match=r"^\[secret KEY\]\.{7000,}$"):
        await sealed.run(fails, what="step")
