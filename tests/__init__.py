"""Everything that shows Callboard keeps its word."""
