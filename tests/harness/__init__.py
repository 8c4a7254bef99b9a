"""Shared parts of the tests: servers, faults, evidence."""
