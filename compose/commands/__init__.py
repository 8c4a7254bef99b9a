"""The commands of `callboard`, one module per command or group of commands.

Words of a command line enter, tables or JSON leave. `cli` is above; `demo`, `diagnosis` and `tools` are below.
"""
