"""Real host processes: killed, frozen, filled, and looked at over HTTP."""
