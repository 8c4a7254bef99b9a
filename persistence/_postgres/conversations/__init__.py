"""Sessions of conversations: their rows, their turns, and the search in them.

Turns of a run are written with its commit; `transcripts` reads them. The store is above; `reads`, `commits` and
`connection` are below.
"""
