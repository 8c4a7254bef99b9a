"""Contracts: frozen values and Protocols. No I/O, no tasks, no clock, no driver."""
