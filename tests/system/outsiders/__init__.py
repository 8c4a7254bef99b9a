"""Tests of external clients over NATS alone: correct, hostile and disconnected ones."""
