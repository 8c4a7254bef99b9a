"""Tests with real processes that are started, killed and stopped, and with real servers that fail."""
