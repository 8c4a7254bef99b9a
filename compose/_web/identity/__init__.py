"""Identities of clients: bearer tokens, JSON web tokens, and cookies of browsers.

`Authentication` turns a request into a `Principal`, or answers 401. No secret is stored or logged.
"""
