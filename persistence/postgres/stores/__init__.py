"""Stores for what agents keep outside their runs, on PostgreSQL: artifacts, vectors and graphs.

Each store is bound to one tenant. Rows are written by statements of their own, beside the commits of runs;
`connection` is below. Tables of vectors and graphs are made on first use: `first_use`.
"""
