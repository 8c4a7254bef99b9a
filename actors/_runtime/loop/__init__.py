"""The event loop's part: tasks, clocks, timers, threads.

Only this package starts tasks or reads the wall clock. All other packages of the runtime may import it; it
imports `telemetry`.
"""
