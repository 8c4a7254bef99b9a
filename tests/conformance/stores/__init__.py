"""Contracts of the stores beside runs: follows, limits, messages, schedules, insight."""
