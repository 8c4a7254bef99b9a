"""The wire format: subjects, headers, codecs and limits of bodies. Values and pure functions only.

Messages enter and bytes leave, and the other way round. Every other room of the broker is above it;
below it is the kernel.
"""
