"""Names, bytes and streams of the broker."""
