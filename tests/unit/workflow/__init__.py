"""Graphs, where no store matters."""
