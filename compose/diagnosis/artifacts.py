"""The check of the bucket or folder for artifacts' bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from actors.errors import ActorsError
from compose.assembly.artifacts import artifact_bytes
from compose.diagnosis.finding import Finding, away, judge

ANSWER_S: Final = 10.0
_REMEDY: Final = (
    "correct CALLBOARD_ARTIFACTS or the keys of the bucket; until then artifacts are neither "
    "stored nor read"
)


async def diagnose_artifacts(place: str) -> list[Finding]:
    """Return a finding about the bucket or folder.

    The check writes nothing, so it does not find a missing permission to write.

    Args:
        place: See `artifact_bytes`.
    """
    where = place.partition("?")[0]
    try:
        kept = artifact_bytes(place)
        assert kept is not None
        if _is_folder_to_be(Path(place)):
            return [_not_there(where)]
        async with asyncio.timeout(ANSWER_S):
            await kept.probe()
    except TimeoutError:
        return [away("artifacts", where, f"no answer within {ANSWER_S:g} s", remedy=_REMEDY)]
    except ActorsError as exc:
        return [away("artifacts", where, exc, remedy=_REMEDY)]
    return [judge("artifacts", f"{where} answers", {"reachable": True})]


def _is_folder_to_be(path: Path) -> bool:
    return path.is_absolute() and not path.exists()


def _not_there(where: str) -> Finding:
    return judge(
        "artifacts",
        f"{where} does not exist",
        {"reachable": False},
        note=True,
        remedy="mount the folder that the hosts share; a new folder is created at its first use",
    )
