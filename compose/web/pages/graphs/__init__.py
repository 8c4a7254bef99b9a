"""Pages of graphs: flows that are served, a flow as a drawing, and a run of one on its drawing."""
