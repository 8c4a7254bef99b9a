"""Values of a request that its provider accepts.

`rules` is a table of what each provider accepts. `names` maps names of tools and ids of calls to those that the
provider accepts, and back. The clients of models mend their requests with both.
"""
