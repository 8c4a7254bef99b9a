"""Commands that look and change nothing, but `agents forget`: agents, traces, traffic, exports, replays."""
