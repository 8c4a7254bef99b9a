"""Commands that talk to agents: send, ask, topics and approvals."""
