"""Recordings: made once with a model, played without it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from actors import ChatMessage, GenerationOptions, LLMClient
from actors.errors import ContractError
from actors.testing import Cassette, ModelReply, NotRecordedError, ScriptedModel

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.agent.models import StreamEvent


def user_messages(*texts: str) -> list[ChatMessage]:
    """User messages of these texts."""
    return [ChatMessage.of("user", text) for text in texts]


async def events(model: LLMClient, *texts: str) -> list[StreamEvent]:
    """All events of one answer."""
    return [event async for event in model.generate_stream(user_messages(*texts))]


def lines(path: Path) -> list[str]:
    """The lines of a cassette; none if there is no file."""
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not there yet, in a folder that is not there either."""
    return tmp_path / "cassettes" / "chat.jsonl"


@pytest.mark.item(340)
async def test_a_recorded_stream_is_played_without_the_model(path: Path) -> None:
    """The same events in the same pieces, and the model's name."""
    live = ScriptedModel(ModelReply(text="It is noon.", reasoning="clock"), model="big-1")
    recorded = await events(Cassette(path, live), "what time is it?")

    played = Cassette(path)

    assert isinstance(played, LLMClient)
    assert await events(played, "what time is it?") == recorded
    assert await events(played, "what time is it?") == recorded
    assert played.model == "big-1"
    assert live.calls == 1


async def test_a_client_is_asked_only_for_what_is_not_recorded(path: Path) -> None:
    """Whatever the metadata of messages is: no provider sees it."""
    live = ScriptedModel("one", "two")
    cassette = Cassette(path, live)
    marked = [
        message.model_copy(update={"metadata": {"turn": "7"}}) for message in user_messages("a")
    ]

    answers = [
        (await cassette.generate(messages)).text
        for messages in (user_messages("a"), marked, user_messages("b"))
    ]

    assert answers == ["one", "one", "two"]
    assert (live.calls, len(lines(path))) == (2, 2)


async def test_an_unknown_request_is_shown_beside_the_nearest_recorded_one(path: Path) -> None:
    """As a diff, with the way to record it."""
    cassette = Cassette(path, ScriptedModel("one", "two", model="m"))
    await cassette.generate(user_messages("the weather in Oslo", "and tomorrow?"))
    await cassette.generate(user_messages("a poem"))

    with pytest.raises(NotRecordedError) as caught:
        await Cassette(path).generate(user_messages("the weather in Rome", "and tomorrow?"))

    text = str(caught.value)
    assert "Cassette(path, client)" in text
    assert '-     "text": "the weather in Oslo"' in text
    assert '+     "text": "the weather in Rome"' in text
    assert "a poem" not in text


async def test_an_unknown_request_to_an_empty_cassette_is_shown_itself(path: Path) -> None:
    """There is nothing to compare it with."""
    with pytest.raises(NotRecordedError, match=r"(?s)Nothing is recorded.*hello") as caught:
        await Cassette(path).generate(user_messages("hello"))

    assert Cassette(path).model == "cassette"
    assert caught.value.path == str(path)


async def test_no_secret_gets_into_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither logins in options, nor values of the environment or of the caller, in request or answer."""
    monkeypatch.setenv("SHOP_API_KEY", "sk-live-0123456789")
    monkeypatch.setenv("CALLBOARD_SECRET_PIN", "pin-0123456789")
    monkeypatch.setenv("HOME_TOWN", "Copenhagen")
    live = ScriptedModel("use sk-live-0123456789 or pin-0123456789 in Copenhagen, hunter2")
    options = GenerationOptions(
        extra={"extra_headers": {"Authorization": "Bearer abc", "x-api-key": "def"}, "seed": 1}
    )
    cassette = Cassette(path, live, secrets=["hunter2"])

    answer = await cassette.generate(user_messages("my pin is pin-0123456789"), options=options)
    [line] = lines(path)

    assert "hunter2" in answer.text
    for secret in ("sk-live-0123456789", "pin-0123456789", "hunter2", "Bearer abc", "def\\"):
        assert secret not in line
    assert '"seed": 1' in line
    assert "Copenhagen" in line
    played = await Cassette(path, secrets=["hunter2"]).generate(
        user_messages("my pin is pin-0123456789"), options=options
    )
    assert played.text == "use [removed] or [removed] in Copenhagen, [removed]"


async def test_a_stream_that_fails_is_not_recorded(path: Path) -> None:
    """The next request of the same text asks the client again."""
    live = ScriptedModel(ModelReply(text="half", error=ConnectionError("cut")), "whole")
    cassette = Cassette(path, live)

    with pytest.raises(ConnectionError):
        await cassette.generate(user_messages("hi"))

    assert lines(path) == []
    assert (await cassette.generate(user_messages("hi"))).text == "whole"


async def test_a_recording_replaces_the_file_as_a_whole(path: Path) -> None:
    """What another process recorded meanwhile is kept, and nothing else is left in the folder."""
    first, second = (Cassette(path, ScriptedModel("x")) for _ in range(2))
    await first.generate(user_messages("a"))
    await second.generate(user_messages("b"))

    digests = [json.loads(line)["digest"] for line in lines(path)]

    assert len(set(digests)) == 2
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_odd_text_is_recorded_and_played(path: Path) -> None:
    """NUL, half a surrogate pair and separators that some call the end of a line."""
    odd = "a\x00b\u2028c\x85d"
    await Cassette(path, ScriptedModel(odd)).generate(user_messages(odd))

    assert (await Cassette(path).generate(user_messages(odd))).text == odd
    with pytest.raises(NotRecordedError):
        await Cassette(path).generate(user_messages("\ud800"))


@pytest.mark.parametrize("line", ["{", "{}", '{"v": 2}', "[]", "null"])
def test_a_file_that_is_no_cassette_is_named(path: Path, line: str) -> None:
    """With the line."""
    path.parent.mkdir()
    path.write_text(f"\n{line}\n")

    with pytest.raises(ContractError, match=r"line 2 of .*chat\.jsonl"):
        Cassette(path)


@pytest.mark.item(340)
async def test_tokens_are_counted_by_the_client_if_there_is_one(path: Path) -> None:
    """Without one by the characters."""

    class Counting(ScriptedModel):
        """Counts to seven."""

        async def count_tokens(self, messages: object) -> int:  # type: ignore[explicit-override]
            """Return 7."""
            del messages
            return 7

    assert await Cassette(path, Counting()).count_tokens(user_messages("abc")) == 7
    assert await Cassette(path).count_tokens(user_messages("abc")) == 5
