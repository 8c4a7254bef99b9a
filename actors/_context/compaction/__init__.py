"""The strategies. Each makes a smaller view of a history. Strategies can be composed.

A strategy gets turns from a `HistoryProvider` or from another strategy, and returns a window. It uses the
groups, sizes and paid calls of `actors.context`. The module `config` uses the strategies.
"""
