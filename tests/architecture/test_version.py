"""`pyproject.toml` has the version. Each other file that names it names the same one."""

from __future__ import annotations

import re
import tomllib
from typing import Final

from tests.architecture.test_house_rules import ROOT

VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "version"
]
IMAGE: Final = re.compile(r"\bcallboard:(\d+\.\d+\.\d+)|^ +newTag: (.+)$", re.MULTILINE)
PLACES: Final = ("*.md", "docs/**/*.md", "compose/**/*", "examples/**/*", "tests/**/*.py")


def test_files_that_name_the_image_name_this_version() -> None:
    """A release changes the tag in all of them: an older one would start the older image."""
    files = {file for pattern in PLACES for file in ROOT.glob(pattern) if file.is_file()}
    tags = {
        file.relative_to(ROOT).as_posix(): {match[1] or match[2] for match in IMAGE.finditer(text)}
        for file in files
        if IMAGE.search(text := file.read_text(encoding="utf-8", errors="ignore"))
    }

    assert len(tags) >= 6
    assert {name: found for name, found in tags.items() if found != {VERSION}} == {}


def test_the_newest_release_of_the_changelog_is_this_version() -> None:
    """Its section begins with the upgrade notes, and is dated."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    release = re.search(r"^## \[(\d\S*)\] - \d{4}-\d\d-\d\d\n\n### (.+)$", text, re.MULTILINE)

    assert release is not None
    assert release.groups() == (VERSION, "Upgrade notes")
