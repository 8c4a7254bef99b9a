"""Tests of tasks of operators and of readers of the README."""
