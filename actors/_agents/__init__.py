"""The agents and tools of `actors.agents`. They use the runtime; sessions and workflows use them."""
