"""Names of the source."""

from tests.compat.abstractruntime.memory import ActiveContextPolicy, TimeRange

__all__ = ["ActiveContextPolicy", "TimeRange"]
