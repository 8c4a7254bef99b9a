"""Names of the source."""
