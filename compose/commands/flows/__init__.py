"""Commands about flow documents."""
