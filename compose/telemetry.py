"""OpenTelemetry: ids of traces that follow from run ids."""

from compose._assembly.telemetry import RunIds

__all__ = ["RunIds"]
