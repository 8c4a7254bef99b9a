"""Workflow graphs: the values that stores keep, and the Protocols of the stores.

A run of a graph is a `RunState`; each of its steps is a `StepRecord` in a ledger. The rules are in
`actors.workflow.machine`; stores are in `actors.workflow.embedded` and in `persistence`.
"""
