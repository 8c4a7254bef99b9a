"""Flows over HTTP: their runs, waits, ledgers and events.

The flows that are served are those that are registered with the runtime. A process that answers requests alone
registers them, too, and executes nothing. A client with the scope sees all runs of flows of its tenant.
"""
