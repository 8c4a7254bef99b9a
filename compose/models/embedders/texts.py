"""Checks of texts to embed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from actors.errors import InvalidTextError
from actors.kernel.text import check_text_of

_ANY: Final = 2**31
_WHAT: Final = "a text to embed"


def check_embeddable(texts: Sequence[str], *, limit_bytes: int) -> None:
    """Check that each text can be embedded.

    Raises:
        InvalidTextError: A text has more UTF-8 bytes than the limit, NUL or an unpaired surrogate.
    """
    for text in texts:
        check_text_of(_WHAT, text, limit_bytes=_ANY)
        if (size := len(text.encode())) > limit_bytes:
            problem = f"has {size} bytes, more than {limit_bytes}: cut it into chunks"
            raise InvalidTextError(_WHAT, problem)
