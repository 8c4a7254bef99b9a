"""Spans, trace contexts and counters of runs.

In: what happens. Out: OpenTelemetry spans, and numbers that metrics read. Below: the kernel only.
"""
