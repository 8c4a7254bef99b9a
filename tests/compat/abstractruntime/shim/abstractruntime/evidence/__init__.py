"""Names of the source."""

from tests.compat.abstractruntime.memory import EvidenceRecorder

__all__ = ["EvidenceRecorder"]
