"""The verbs of graphs: how a driver of workflow graphs records steps, executes effects and waits.

Agents have no use for them. `actors.workflow.actor` is above; effects, questions and the journal are below.
"""
