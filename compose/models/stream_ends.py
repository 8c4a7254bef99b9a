"""The provider's own end of an answer: a finish reason, or the line `[DONE]` of servers that send no reason.

Usage and the end of the connection prove nothing: a proxy may close a stream in the middle of an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, StreamedResponse

_MAKE: Final = "_make_sse_decoder"
_DONE: Final = "[DONE]"


class _WatchedDecoder:
    """The decoder of an OpenAI client's stream, which also notes the line `[DONE]`."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.is_done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    async def aiter_bytes(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        """Yield the decoder's events."""
        async for event in self._decoder.aiter_bytes(pieces):
            self.is_done = self.is_done or str(event.data).startswith(_DONE)
            yield event


def watch_ends(sdk: Model) -> None:
    """Let the streams of an OpenAI client note their last lines. Other SDKs tell the finish reason."""
    _watch(getattr(sdk, "client", None))


def _watch(client: Any) -> Any:
    """Return the client, whose streams, and those of its copies with other options, are watched."""
    make: Any = getattr(client, _MAKE, None)
    copy: Any = getattr(client, "with_options", None)
    if make is not None and not hasattr(make, "is_watched"):

        def watched() -> _WatchedDecoder:
            return _WatchedDecoder(make())

        watched.is_watched = True  # type: ignore[attr-defined]
        setattr(client, _MAKE, watched)
        # pydantic-ai asks a copy of the client, if a request has its own number of retries.
        client.with_options = lambda **options: _watch(copy(**options))
    return client


def has_end(stream: StreamedResponse, answer: ModelResponse) -> bool:
    """Return whether the provider itself has ended the answer."""
    if (answer.provider_details or {}).get("finish_reason"):
        return True
    # For a stream without a reason, the SDK's class for OpenAI's chat makes one up.
    if getattr(stream, "_has_finish_reason", None) is None:
        return answer.finish_reason is not None
    source = getattr(getattr(stream, "_response", None), "source", None)
    return bool(getattr(getattr(source, "_decoder", None), "is_done", False))
