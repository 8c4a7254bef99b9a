"""VisualFlow: graphs drawn in an editor. Its JSON is read, lowered pass by pass, and compiled."""
