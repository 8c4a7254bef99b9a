"""Stores for what agents keep outside their runs, on PostgreSQL: artifacts.

Each store is bound to one tenant. Rows are written by statements of their own, beside the commits of runs;
`connection` is below.
"""
