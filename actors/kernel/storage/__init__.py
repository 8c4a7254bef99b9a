"""Contracts of what agents keep outside their runs."""
