"""Toolsets of the worker: `files` below one folder, `web` by GET, and `shell`."""
