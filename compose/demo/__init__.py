"""The demo: a real job over real files, killed half-way and finished by another process."""
