"""Topics: who follows them, and the schedules that post."""
