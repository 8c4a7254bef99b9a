"""Tables of operators: audit, tokens, usage, snapshots, flow bundles; erasure and retention."""
