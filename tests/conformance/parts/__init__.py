"""Contracts of the parts that a host can be given, in memory and as views of stores."""
