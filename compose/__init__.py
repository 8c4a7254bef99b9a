"""The composition root: where the parts are put together."""

__all__: list[str] = []
