"""The files of the pages: small, and in the wheel."""

from __future__ import annotations

import re

from compose._web.pages.html import FOLDER, POLICY, TEMPLATES, Assets

MOST_LINES = 1_500
MOST_BYTES = 60 * 1024


def test_scripts_stay_small() -> None:
    """All of JavaScript has at most 1,500 lines; all files on the wire leave half of 60 KB to the page."""
    lines = sum(len(file.read_text("utf-8").splitlines()) for file in FOLDER.glob("*.js"))

    assert lines <= MOST_LINES
    assert sum(map(len, Assets.load().files.values())) <= MOST_BYTES / 2


def test_a_template_runs_nothing_by_itself() -> None:
    """Each script and style is a file of ours; no value is marked as safe."""
    for file in TEMPLATES.rglob("*.html"):
        text = file.read_text("utf-8")
        assert not re.search(r"<style|\sstyle=|\son\w+=|\|\s*safe|autoescape", text), file
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text)), file
    assert "unsafe" not in POLICY
