"""The types of nodes of VisualFlow: their values, their effects and the ways from them."""
