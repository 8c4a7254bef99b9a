"""What travels: subjects, headers, codecs and the limits of bodies. Values and pure functions alone.

Messages enter and bytes leave, and the other way round. Every other room of the broker is above it;
below it is the kernel.
"""
