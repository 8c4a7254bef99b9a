"""Models for tests of agents: answers from a script, from a function or from a recording, without a provider.

Each is an `LLMClient`, so an agent's `model` can be one of them, and none needs a network or a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from actors._testing.cassette import Cassette, NotRecordedError
    from actors._testing.model_reply import Asked, ModelReply
    from actors._testing.scripted_model import FunctionModel, ScriptedModel, ScriptEndedError
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors._testing.cassette": ("Cassette", "NotRecordedError"),
            "actors._testing.model_reply": ("Asked", "ModelReply"),
            "actors._testing.scripted_model": (
                "FunctionModel",
                "ScriptEndedError",
                "ScriptedModel",
            ),
        },
    )

__all__ = [
    "Asked",
    "Cassette",
    "FunctionModel",
    "ModelReply",
    "NotRecordedError",
    "ScriptEndedError",
    "ScriptedModel",
]
