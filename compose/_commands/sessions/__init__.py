"""Commands about sessions: `chat` and the group `sessions`."""
