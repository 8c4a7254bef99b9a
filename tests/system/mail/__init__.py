"""Tests of messages between real hosts over real brokers that fail."""
