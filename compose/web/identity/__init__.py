"""Identities of clients: bearer tokens, JSON web tokens, cookies of browsers.

A request enters `Authentication`; a `Principal` leaves, or a problem with 401. No secret is kept or logged.
"""
