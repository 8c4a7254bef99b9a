"""Redis: results of effects, beside the log and never instead of it; and histories that may be forgotten.

`open_redis_journal` gives the journal of one host. Losing Redis, or all that it holds, loses nothing but
the narrower crash window; see docs/semantics.md, "Without Redis". `open_redis_history` gives a
`HistoryProvider`: what an agent remembers goes with its Redis; see docs/context.md, "Histories".
"""

from persistence._redis.client import RedisUrlError, open_redis
from persistence._redis.errors import RedisRefusedError, RedisUnreachableError
from persistence._redis.history import RedisHistoryProvider, open_redis_history
from persistence._redis.journal import RedisJournal, open_redis_journal

__all__ = [
    "RedisHistoryProvider",
    "RedisJournal",
    "RedisRefusedError",
    "RedisUnreachableError",
    "RedisUrlError",
    "open_redis",
    "open_redis_history",
    "open_redis_journal",
]

__path__: list[str] = []  # modules of the release before were below this one
