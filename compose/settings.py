"""Settings: what a program, a host and a client read from the environment or get in code."""

from compose._assembly.runtime import settings_of_client
from compose._assembly.settings import Settings

__all__ = ["Settings", "settings_of_client"]
