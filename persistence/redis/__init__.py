"""Results of effects in Redis, beside the log and never instead of it.

`open_redis_journal` gives the journal of one host. Losing Redis, or all that it holds, loses nothing but
the narrower crash window; see docs/semantics.md, "Without Redis".
"""

from persistence.redis.client import RedisUrlError, open_redis
from persistence.redis.journal import RedisJournal, open_redis_journal

__all__ = ["RedisJournal", "RedisUrlError", "open_redis", "open_redis_journal"]
