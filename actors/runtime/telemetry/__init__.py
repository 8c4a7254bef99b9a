"""What is told of runs to those who watch: spans, trace contexts, counters.

In: what happens. Out: OpenTelemetry spans, and numbers that metrics read. Below: the kernel only.
"""
