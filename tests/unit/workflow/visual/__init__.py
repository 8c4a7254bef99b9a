"""VisualFlow: its passes, its nodes, and whole flows."""
