"""Commands that run agents: `host`, `dev` and `demo`."""
