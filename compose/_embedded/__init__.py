"""The servers of `compose.embedded`: found as wheels, started, owned and ended."""
