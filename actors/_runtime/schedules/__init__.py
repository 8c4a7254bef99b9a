"""Schedules: the API to change them, and their ticks.

In: cron expressions and instants. Out: messages in inboxes, one for each tick. Above: `host_parts`. Below: the
worker, `loop.timers`, and the store.
"""
