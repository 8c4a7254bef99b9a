"""The bucket or folder of artifacts' bytes that the settings name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from actors.errors import ContractError
from actors.kernel.stores.artifacts import ArtifactBytes

_OPTIONS: Final = frozenset({"endpoint", "region"})


def artifact_bytes(place: str | None) -> ArtifactBytes | None:
    """Return a store of artifacts' bytes in a bucket or a folder, or None if `place` is None.

    The function sends no request.

    Args:
        place: ``s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION``, or the absolute path of a folder.
            Keys come from the environment: ``AWS_ACCESS_KEY_ID``, or the role of the container or machine.

    Raises:
        ContractError: `place` is not a valid location, or the extra ``s3`` is not installed.
    """
    if place is None:
        return None
    parts = urlsplit(place)
    options = dict(parse_qsl(parts.query))
    is_bucket = parts.scheme == "s3" and options.keys() <= _OPTIONS and "@" not in parts.netloc
    if not is_bucket and not Path(place).is_absolute():
        remedy = "s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION, or an absolute path"
        raise ContractError(f"CALLBOARD_ARTIFACTS names no bucket and no folder: write {remedy}")
    if find_spec("obstore") is None:
        raise ContractError("CALLBOARD_ARTIFACTS needs an extra: pip install 'callboard[s3]'")
    from persistence.objects import ObjectArtifactBytes, S3Settings  # noqa: PLC0415 - few use it

    if is_bucket:
        settings = S3Settings(
            bucket=parts.netloc,
            prefix=parts.path.strip("/"),
            endpoint=options.get("endpoint"),
            region=options.get("region", "us-east-1"),
        )
        return ObjectArtifactBytes.in_s3(settings)
    return ObjectArtifactBytes.in_folder(Path(place))
