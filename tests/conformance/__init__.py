"""Conformance suites: one per Protocol, run on each of its backends."""
