"""Tests of what operators and readers of the README do."""
