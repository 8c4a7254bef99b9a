"""Changes and tables of operators: forks, redrives, audit, tokens, usage, snapshots, flow bundles; erasure."""
