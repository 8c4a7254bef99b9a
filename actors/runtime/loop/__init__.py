"""The event loop's part: tasks, clocks, timers, threads.

The only place that starts tasks or reads the wall clock. Above: everything that runs. Below: `telemetry`.
"""
