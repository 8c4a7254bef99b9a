"""Comparisons with other programs on the same servers, each in a process and an environment of its own."""
