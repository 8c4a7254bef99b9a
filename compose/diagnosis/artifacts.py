"""The bucket or folder for bytes of artifacts: one that is named has to be usable."""

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
    """Return what was found. Nothing is written: whether new artifacts can be is seen when they are stored.

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
        f"{where} is not there",
        {"reachable": False},
        note=True,
        remedy="mount the folder that the hosts share; one that is new is made when it is used",
    )
