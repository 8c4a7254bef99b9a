"""Workflow graphs: the values that stores keep, and the Protocols of the stores.

A run of a graph is a `RunState`; each of its steps is a `StepRecord` in a ledger. The rules are in
`actors._workflow.machine`; stores are in `actors._workflow.embedded` and in `persistence`.
"""
