"""Real servers in virtual time, on which programs are run."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from broker._mail import reader
from broker._nats import client as nats_client
from tests.harness import servers
from tests.harness.heldloop import HeldLoop
from tests.harness.lasting import keep_in, let_go
from tests.model.broker_ground import FOR_EVER_S, theatre

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.servers import TestNats, TestPostgres
    from tests.model.broker_ground import Theatre


@contextmanager
def opened_stage(
    postgres: TestPostgres, nats: TestNats, *, brokered: bool = True
) -> Iterator[Theatre]:
    """Yield a theatre with a schema and a namespace of its own, both deleted at the end of the block."""
    loop, name = HeldLoop(), secrets.token_hex(6)
    keep_in(loop)
    with pytest.MonkeyPatch.context() as patch:
        # Virtual time jumps, so a silence has no meaning to the servers.
        patch.setattr(reader, "SILENT_S", FOR_EVER_S)
        patch.setattr(reader, "PROVE_EVERY_S", FOR_EVER_S)
        patch.setattr(nats_client, "PING_EVERY_S", int(FOR_EVER_S))
        with loop.watching(patch):
            opened = theatre(
                loop,
                postgres_url=postgres.url,
                schema=f"t_{name}",
                nats_url=nats.url if brokered else None,
                namespace=f"t-{name}",
            )
            try:
                yield loop.run_until_complete(opened.__aenter__())
            finally:
                loop.run_until_complete(opened.__aexit__(None, None, None))
                loop.run_until_complete(loop.end_tasks())
                loop.run_until_complete(let_go(loop))
    loop.close()
    asyncio.run(servers.drop_namespace(nats, f"t-{name}"))
    asyncio.run(servers.drop_schema(postgres, f"t_{name}"))
