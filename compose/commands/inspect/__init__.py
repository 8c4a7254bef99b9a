"""Commands that only read, but for `agents forget`: agents, sessions, traces, traffic, exports."""
