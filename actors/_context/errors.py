"""The errors about windows."""

from __future__ import annotations

from actors.errors import ContractError, Facts


class WindowTooSmallError(Facts, ContractError):
    """A model's window is too small for the parts that no strategy may drop. No request was sent or billed.

    Attributes:
        model: The model's name.
        size: The size of the model's window, in tokens.
        parts: The sizes of the parts in tokens, for example ``instructions 900, tools 4000, new turns 30000``.
    """

    text = (
        "the window of model {model!r} has {size} tokens, and its fixed parts are larger: {parts}."
        " Shorten it, lower max_tokens, or take a model with a larger window"
    )
    model: str
    size: int
    parts: str
