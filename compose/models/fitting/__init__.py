"""Requests that their provider accepts.

`rules` is a table of what each provider accepts. `names` maps names of tools and ids of calls to those that the
provider accepts, and back. `turns` mends the turns of a request.
"""
