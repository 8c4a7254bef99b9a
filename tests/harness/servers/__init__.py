"""Real servers for tests: shared ones for a session, private ones to be killed."""

from tests.harness.servers.faults import copy_of, fail_over, freeze, thaw, wipe
from tests.harness.servers.nats import NATS, OwnNats, TestNats, drop_namespace, own_nats_factory
from tests.harness.servers.plain import age_database, plain_database
from tests.harness.servers.postgres import (
    AGE,
    POSTGRES,
    NewClusters,
    OwnPostgres,
    TestPostgres,
    drop_schema,
    own_postgres_factory,
)
from tests.harness.servers.redis import REDIS, OwnRedis, TestRedis, own_redis_factory
from tests.harness.servers.s3 import S3, new_bucket
from tests.harness.servers.schemas import Observer, Schemas
from tests.harness.servers.sources import (
    Kind,
    Source,
    TestServer,
    docker_answers,
    folder_in_memory,
    refuse,
    server_directory,
)

__all__ = [
    "AGE",
    "NATS",
    "POSTGRES",
    "REDIS",
    "S3",
    "Kind",
    "NewClusters",
    "Observer",
    "OwnNats",
    "OwnPostgres",
    "OwnRedis",
    "Schemas",
    "Source",
    "TestNats",
    "TestPostgres",
    "TestRedis",
    "TestServer",
    "age_database",
    "copy_of",
    "docker_answers",
    "drop_namespace",
    "drop_schema",
    "fail_over",
    "folder_in_memory",
    "freeze",
    "new_bucket",
    "own_nats_factory",
    "own_postgres_factory",
    "own_redis_factory",
    "plain_database",
    "refuse",
    "server_directory",
    "thaw",
    "wipe",
]
