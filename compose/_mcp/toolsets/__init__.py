"""Toolsets of the worker: `files` in one folder, `web` by GET, and `shell`."""
