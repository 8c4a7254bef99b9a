"""The AG-UI protocol. An input starts a run, delivers answers or reads a session; the response is events.

A request enters at `endpoint`. `intake` validates the input and `events` translates events, both without I/O.
`endpoint` starts a run, delivers answers to a waiting run, or shows a conversation. `stream` sends events until
the run ends or waits for the client.
"""
