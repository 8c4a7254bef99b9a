"""The demo: a real job over real files, killed half-way and finished by another process.

A folder of documents enters, their summaries and the proof that none was made twice leave. The command `demo`
is above; `host`, `assembly` and `embedded` are below.
"""
