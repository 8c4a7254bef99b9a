"""Commands about runs of flows."""
