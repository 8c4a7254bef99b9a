"""Stores for what agents keep outside their runs, on PostgreSQL: artifacts, files, boards, vectors, graphs.

Each store is bound to one tenant. Rows are written by statements of their own, beside the commits of runs;
`connection` is below. Tables of all but artifacts are made on first use, by `first_use`.
"""
