"""What operators keep and delete: audit, tokens, usage, snapshots, flow bundles, erasure, retention."""
