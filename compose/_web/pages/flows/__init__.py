"""Pages of flows: the list of flows, a flow with its drawing, and a run of a flow on its drawing."""
