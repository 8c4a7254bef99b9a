"""What a store has beside runs: follows of posts, limits, mail, schedules, insight."""
