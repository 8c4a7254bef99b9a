"""VisualFlow: graphs that were drawn in an editor, read from its JSON, lowered pass by pass, and compiled."""
