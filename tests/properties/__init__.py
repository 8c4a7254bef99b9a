"""Properties over random programs, crashes and time."""
