"""The commands of `callboard`, one module per command or group of commands."""
