"""The stores of `persistence.objects`.

Keys and bytes enter by `FileStore`; requests of a client leave, and errors of this project. It knows
no database.
"""
