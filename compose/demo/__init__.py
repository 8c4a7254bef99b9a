"""The demo: a job over files, whose host is killed, and which another host completes.

The demo reads a folder of documents, and returns their summaries and the proof that no recorded effect was
executed twice. The command `demo` imports this package, which imports `host`, `assembly` and `embedded`.
"""

__all__: list[str] = []
