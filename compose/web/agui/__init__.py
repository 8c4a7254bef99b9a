"""The AG-UI protocol: a run's input becomes a message, an answer or a read, and events of sessions its events.

An input enters at `endpoint`. `intake` reads it and `tree` translates events; both are pure. `answers` gives a
run what it waits for, `starting` begins one, `snapshot` shows a conversation, and `stream` sends what happens
until the run ends or waits for the client.
"""
