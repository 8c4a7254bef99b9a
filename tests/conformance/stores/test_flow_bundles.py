"""The contract of every `BundleRegistry`: whole bundles by id and version, each content once."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.artifacts import InMemoryArtifacts
from actors._inmemory.flows import InMemoryFlowBundles
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.artifacts import ArtifactStores
from actors._kernel.stores.flows import FLOWS_SCOPE, FlowBundleStore
from actors._workflow.bundles import (
    INSTALLED_APP,
    BundleRegistry,
    FolderBundles,
    StoredBundles,
    WorkflowBundleError,
    WorkflowBundleRegistry,
    WorkflowBundleRegistryError,
)
from actors.workflow import FlowError
from persistence._postgres.administration.tables import PostgresFlowBundles
from persistence._postgres.data.artifacts import PostgresArtifacts
from persistence.objects import ObjectArtifactBytes
from tests.conformance.clock import ManualClock
from tests.conformance.stores.stored import lent_links

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from persistence._postgres.connection.link import Links

pytestmark = pytest.mark.item(469)
OPEN_RUN = """
insert into runs (run_id, agent, tenant, shard, hash, priority, depth, ended_at)
  values ($1, $2, $3, 's', 0, 5, 0, case when $4 then now() end)
"""


@dataclass(slots=True)
class Ground:
    """Registries of two tenants, where there are such, and what is below them.

    Attributes:
        ours: Of the tenant acme.
        theirs: Of the default tenant; None: a folder.
        rows: Where the rows are.
        artifacts: Where the files are.
        links: To PostgreSQL.
        open: The agents of open runs, in memory.
    """

    ours: BundleRegistry
    theirs: BundleRegistry | None = None
    rows: FlowBundleStore | None = None
    artifacts: ArtifactStores | None = None
    links: Links | None = None
    open: Sequence[str] = ()

    async def begin(self, run: str, agent: AgentId, *, is_over: bool = False) -> None:
        """Add a run."""
        if self.links is None:
            self.open = [*self.open, *([] if is_over else [str(agent)])]
            return
        args = (run, str(agent), agent.tenant, is_over)
        await self.links.fetch("adding a run", OPEN_RUN, *args)


@asynccontextmanager
async def in_folder(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    """Return a folder of this machine."""
    folder = request.getfixturevalue("tmp_path")
    yield Ground(FolderBundles(WorkflowBundleRegistry(folder / "flows")))


def _stored(rows: FlowBundleStore, artifacts: ArtifactStores, links: Links | None) -> Ground:
    ours, theirs = (StoredBundles(rows, artifacts, tenant) for tenant in ("acme", "default"))
    return Ground(ours, theirs, rows, artifacts, links)


@asynccontextmanager
async def in_memory(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    """Rows of this process."""
    del request
    artifacts = InMemoryArtifacts(ManualClock().now)
    ground: list[Ground] = []

    def open_runs(heads: Sequence[str]) -> int:
        return sum(agent.startswith(tuple(heads)) for agent in ground[0].open)

    rows = InMemoryFlowBundles(ManualClock().now, artifacts, open_runs)
    ground.append(_stored(rows, artifacts, None))
    yield ground[0]


@asynccontextmanager
async def in_postgres(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    """Rows of a schema."""
    async with lent_links(request, 4) as links:
        yield _stored(PostgresFlowBundles(links), PostgresArtifacts(links), links)


@asynccontextmanager
async def in_objects(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    """Rows of a schema, files as objects elsewhere."""
    async with lent_links(request, 4) as links:
        objects = ObjectArtifactBytes.in_folder(request.getfixturevalue("tmp_path"))
        yield _stored(PostgresFlowBundles(links), PostgresArtifacts(links, objects), links)


SERVED = [
    in_memory,
    pytest.param(in_postgres, marks=pytest.mark.postgres),
    pytest.param(in_objects, marks=pytest.mark.postgres),
]


@pytest.fixture(params=[in_folder, *SERVED])
async def ground(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    """An empty registry on each backend."""
    async with request.param(request) as new_ground:
        yield new_ground


@pytest.fixture(params=SERVED)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    """An empty registry of a deployment."""
    async with request.param(request) as new_ground:
        yield new_ground


def flow(id_: str, output: Any) -> dict[str, Any]:
    """A flow that ends at once."""
    return {"flow": 1, "id": id_, "start": "e", "nodes": {"e": {"end": output}}}


def bundle(version: str = "1", output: Any = 1, *, id_: str = "refund", **flows: Any) -> bytes:
    """The bytes of a bundle of a flow `main`, and of others."""
    all_flows = {"main": flow("main", output), **flows}
    manifest = {
        "bundle_format_version": "1",
        "bundle_id": id_,
        "bundle_version": version,
        "entrypoints": [{"flow_id": "main"}],
        "flows": {name: f"flows/{name}.json" for name in all_flows},
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("manifest.json", json.dumps(manifest))
        for name, content in all_flows.items():
            packed.writestr(f"flows/{name}.json", json.dumps(content))
    return out.getvalue()


def refs(bundles: list[Any]) -> list[str]:
    """Return id and version of each."""
    return [b.manifest.ref for b in bundles]


async def test_what_is_installed_is_found_listed_and_opened(ground: Ground) -> None:
    """By id and version. The id alone finds the greatest version."""
    for version in ("1.9", "1.10", "1.10-rc1"):
        record, is_new = await ground.ours.install(bundle(version), by="ada")
        assert is_new
        assert record.manifest.bundle_version == version
        assert record.size_bytes == len(bundle(version))
    await ground.ours.install(bundle(id_="a"))

    assert refs(await ground.ours.list()) == ["a@1", "refund@1.10", "refund@1.10-rc1", "refund@1.9"]
    newest = await ground.ours.find("refund")
    assert newest is not None
    assert newest.manifest.ref == "refund@1.10"
    assert (await ground.ours.open("refund@1.9")).hash == (
        await ground.ours.install(bundle("1.9"))
    )[0].hash
    assert await ground.ours.find("refund@2") is None
    assert await ground.ours.find("other") is None
    with pytest.raises(WorkflowBundleRegistryError, match=r"refund@2: it is not installed"):
        await ground.ours.open("refund@2")


async def test_the_same_content_is_no_change_and_other_content_is_refused(ground: Ground) -> None:
    """The content is compared and not the file."""
    first, _ = await ground.ours.install(bundle())
    again, is_new = await ground.ours.install(bundle())
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(bundle())) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in reversed(old.namelist()):
            packed.writestr(name, old.read(name))
    repacked, is_new_again = await ground.ours.install(out.getvalue())

    assert (is_new, is_new_again) == (False, False)
    assert again.hash == repacked.hash == first.hash
    with pytest.raises(WorkflowBundleRegistryError, match="another version"):
        await ground.ours.install(bundle(output=2))
    assert (await ground.ours.open("refund@1")).hash == first.hash


async def test_of_installs_at_once_one_wins(ground: Ground) -> None:
    """The same content is installed for all callers. Other content is refused."""
    tried = (bundle(output=n % 2) for n in range(6))
    answers = await asyncio.gather(*(ground.ours.install(b) for b in tried), return_exceptions=True)
    installed_hash = (await ground.ours.open("refund@1")).hash
    done = [answer[0].hash for answer in answers if not isinstance(answer, BaseException)]
    refused = [answer for answer in answers if isinstance(answer, BaseException)]

    assert {*done} == {installed_hash}
    assert (len(done), len(refused)) == (3, 3)
    assert all(isinstance(error, WorkflowBundleRegistryError) for error in refused)


async def test_what_is_wrong_leaves_nothing(ground: Ground) -> None:
    """The error names all mistakes of all flows."""
    broken = {"e": {"end": "${vars.}"}}
    with pytest.raises(FlowError) as caught:
        await ground.ours.install(
            bundle(b={**flow("b", 1), "start": "x"}, c={**flow("c", 1), "nodes": broken})
        )
    with pytest.raises(WorkflowBundleError):
        await ground.ours.install(b"PK no zip file")

    files = {f.file for f in caught.value.findings}
    assert files == {"refund@1/flows/b.json", "refund@1/flows/c.json"}
    assert await ground.ours.list() == []


async def test_what_is_removed_is_gone(ground: Ground) -> None:
    """One version, or all. After that, other content may have its name."""
    for version in ("1", "2", "3"):
        await ground.ours.install(bundle(version))

    assert await ground.ours.remove("refund@2") == 1
    assert await ground.ours.remove("refund@2") == 0
    assert refs(await ground.ours.list()) == ["refund@3", "refund@1"]
    assert await ground.ours.remove("refund") == 2
    assert await ground.ours.list() == []
    assert (await ground.ours.install(bundle("2", 7)))[1]


async def test_tenants_do_not_see_each_other(served: Ground) -> None:
    """Each has its own content under one name, with the installer and the time."""
    assert served.theirs is not None
    ours, _ = await served.ours.install(bundle(), by="ada")
    theirs, _ = await served.theirs.install(bundle(output=2), by="bob")
    await served.theirs.remove("refund@1")

    assert ours.hash != theirs.hash
    installed_bundle = await served.ours.find("refund@1")
    assert installed_bundle == ours
    assert installed_bundle is not None
    assert installed_bundle.installed_by == "ada"
    assert installed_bundle.installed_at is not None
    assert await served.theirs.find("refund@1") is None


async def test_one_with_open_runs_is_not_removed(served: Ground) -> None:
    """Open runs of any of its flows count. Those of another version or tenant do not."""
    await served.ours.install(bundle("1", sub=flow("sub", 1)))
    await served.ours.install(bundle("1.2"))
    for n, name in enumerate(("refund@1", "refund@1.sub", "refund@1.2")):
        await served.begin(f"r{n}", AgentId(INSTALLED_APP, f"{name}:k", "acme"))
    await served.begin("r7", AgentId(INSTALLED_APP, "refund@1:old", "acme"), is_over=True)
    await served.begin("r8", AgentId(INSTALLED_APP, "refund@1:k"))

    with pytest.raises(WorkflowBundleRegistryError, match=r"2 of its runs are open\. .*cancel"):
        await served.ours.remove("refund@1")
    with pytest.raises(WorkflowBundleRegistryError, match="1 of its runs is open"):
        await served.ours.remove("refund@1.2")
    assert refs(await served.ours.list()) == ["refund@1.2", "refund@1"]


async def test_half_an_install_is_not_seen_and_is_collected(served: Ground) -> None:
    """A process crashed after storing the artifact. The artifact of a whole install stays until its removal."""
    assert served.artifacts is not None
    files = served.artifacts.of("acme", FLOWS_SCOPE)
    half = await files.store(bundle("9"))
    whole, _ = await served.ours.install(bundle())
    assert refs(await served.ours.list()) == ["refund@1"]

    while await served.artifacts.collect(grace_s=0):
        pass
    assert await files.stat(half.id) is None
    assert (await served.ours.open("refund")).hash == whole.hash

    await served.ours.remove("refund")
    while await served.artifacts.collect(grace_s=0):
        pass
    assert await files.stat(whole.place) is None


async def test_a_row_without_its_artifact_is_not_written(served: Ground) -> None:
    """The artifact was collected in the meantime: nothing is installed."""
    assert served.rows is not None
    assert served.artifacts is not None
    whole, _ = await served.ours.install(bundle())
    row = await served.rows.get("acme", "refund", "1")
    assert row is not None
    await served.ours.remove("refund")
    await served.artifacts.of("acme", FLOWS_SCOPE).discard(whole.place)

    assert await served.rows.put("acme", row) is None
    assert await served.ours.list() == []
