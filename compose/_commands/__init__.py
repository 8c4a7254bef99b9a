"""The commands of `callboard`, one module per command or group of commands.

A command reads its arguments and prints a table or JSON. `compose._cli` imports this package, which imports
`demo`, `diagnosis` and `tools`.
"""
