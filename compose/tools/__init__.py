"""Tools for developers and operators: reload on change, replay, export, sessions, trace trees, taps, AsyncAPI.

Rows and messages enter, documents and text leave; each module is one tool and knows no other command.
The commands are above it; `host`, `assembly` and `embedded` are below.
"""
