"""Commands that look and change nothing, but `agents forget`: agents, sessions, traces, traffic, exports."""
