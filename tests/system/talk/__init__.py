"""Tests of agents that communicate while hosts crash."""
