"""Tools for developers and operators: reload on change, replay, export, sessions, trace trees, taps, AsyncAPI.

A tool takes rows and messages, and returns documents and text. Each module is one tool. The commands import
this package, which imports `host`, `assembly` and `embedded`.
"""
