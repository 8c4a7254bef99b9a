"""Property tests over random programs, crashes and time."""
