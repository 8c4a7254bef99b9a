"""The command line in the test's own process, against one schema of one server."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from compose._cli import run
from tests.system.agents import TYPES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from actors._runtime import Runtime


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its output as JSON."""
        assert self.code in (0, 1), self
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Cli:
    """Runs commands."""

    url: str
    schema: str
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Said:
        """Run one command on the test's schema."""
        return self.bare(*arguments, "--postgres-url", self.url, "--schema", self.schema)

    def bare(self, *arguments: str) -> Said:
        """Run one command as it is."""
        self.capsys.readouterr()
        code = run(list(arguments))
        out, err = self.capsys.readouterr()
        return Said(code, out, err)

    async def call(self, *arguments: str) -> Said:
        """Run one command while the test's event loop goes on."""
        return await asyncio.to_thread(self, *arguments)

    @asynccontextmanager
    async def host(self, *types: str, **settings: Any) -> AsyncIterator[Runtime]:
        """A host in this process that serves these of the tests' agent types."""
        host_settings = Settings(postgres_url=self.url, db_schema=self.schema, **settings)
        async with build_postgres_runtime(self.url, settings=host_settings) as runtime:
            for name in types:
                await runtime.register_type(name, TYPES[name])
            yield runtime
