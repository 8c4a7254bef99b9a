"""Protocols of a host's store and broker, and of the stores of agents' data, with their values.

Each Protocol is one role. `run_store` joins the roles of a host's store: commits, messages, leases, fan-out,
limits, schedules and reads. `artifacts`, `data`, `conversations` and `memory` are what agents keep outside
their runs. `persistence`, `broker` and `actors._inmemory` implement them. `kernel.runtime` is below; the whole
runtime is above.
"""
