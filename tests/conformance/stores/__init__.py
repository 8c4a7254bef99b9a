"""Suites of what a store has beside runs: follows, limits, mail, schedules, insight."""
