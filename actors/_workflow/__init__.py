"""The parts of `actors.workflow`.

The rules are in `machine`, which is pure; `embedded` drives runs in this process, over the stores that the
caller gives; `hosted` drives each run as an agent of a runtime, on any host.
"""
