"""The composition root: where the parts are put together."""

from compose.runtime import build_local_runtime, build_postgres_runtime, build_runtime
from compose.settings import Settings

__all__ = ["Settings", "build_local_runtime", "build_postgres_runtime", "build_runtime"]
