"""The types of nodes of VisualFlow: what each computes, asks for, or where it leads to."""
