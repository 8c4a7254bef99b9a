"""Real processes: started, killed, stopped, and the servers below them too."""
