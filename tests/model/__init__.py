"""Small JSON programs, an agent that interprets them, and an exact model of what must happen."""
