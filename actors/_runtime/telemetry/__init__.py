"""Spans, trace contexts and counters of runs.

In: events of runs. Out: OpenTelemetry spans, and numbers that metrics read. Below: the kernel only.
"""
