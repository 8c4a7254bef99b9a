"""Executions of runs, each from its load until it ends, suspends or is given up.

In: a loaded run and its messages. Out: the run's outcome, written. The agent's code is called here, by
`verbs.middleware`. Above: the worker. Below: `verbs`, which the code uses.
"""
