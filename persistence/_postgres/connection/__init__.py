"""The way to PostgreSQL: pooled connections, merged statements, notifications, the server's clock.

Statements of every other room enter and rows leave; what fails leaves as an error of
`persistence.errors` that says whether the server may have acted. All rooms are above it, none below.
"""
