"""The strategies: each makes a smaller view of a history, and may be composed with others.

Turns enter, as a `HistoryProvider` has them or as another strategy left them; a window leaves. Groups,
sizes and paid calls are those of `actors.context`; `config` is above.
"""
