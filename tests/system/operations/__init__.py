"""What operators and readers of the README do."""
