"""HTTP API of flows: their runs, waits, ledgers and events.

A process serves the flows that are registered with its runtime, and the installed flows. A process without
agents registers flows, too, and executes none. A client with the scope ``flows:run`` sees all runs of flows of
its tenant.
"""
