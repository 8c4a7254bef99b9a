"""The pictures of terminals in `docs/screens`."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import TYPE_CHECKING, Any

from tests.unit.documents import ROOT

if TYPE_CHECKING:
    from types import ModuleType

SCREENS = ROOT / "docs" / "screens"


def make() -> ModuleType:
    """The script that makes them."""
    spec = importlib.util.spec_from_file_location("screens_make", SCREENS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_one_of_each_scene_and_none_of_another() -> None:
    """Scenes are the shell blocks of the documents, named for their headings."""
    program: Any = make()
    scenes = {scene.name for section in program.SECTIONS for scene in program.scenes(*section)}

    assert {file.stem for file in SCREENS.glob("*.svg")} == scenes


def test_they_tell_no_secret_and_fetch_nothing() -> None:
    """No password of a server, no folder of whoever made them, no font from anywhere."""
    for file in SCREENS.glob("*.svg"):
        text = file.read_text(encoding="utf-8")
        hosts = set(re.findall(r"(?:https?|nats|postgresql|redis)://([^/\s<\"]+)", text))

        assert hosts <= {"www.w3.org", "www.textualize.io", "127.0.0.1:8080", "127.0.0.1:8081"}, (
            file.name
        )
        assert "/tmp/" not in text, file.name
        assert "@font-face" not in text, file.name


def test_no_job_is_meant_by_its_number() -> None:
    """Whose shell has other jobs, or has seen one end, would stop or wait for the wrong one."""
    program: Any = make()
    scenes = [scene for section in program.SECTIONS for scene in program.scenes(*section)]
    typed = [command.text for scene in scenes for command in scene.commands]

    assert typed
    assert [text for text in typed if re.search(r"\b(?:kill|wait|fg|bg) %", text)] == []


def test_a_block_is_read_as_commands_with_their_promises() -> None:
    """Comments are no commands; a line that ends in a backslash goes on."""
    program: Any = make()
    commands = list(program.commands("# first\none \\\n  two\n# -> a…\n# -> b\nthree # why\n"))

    assert [(command.text, command.promised) for command in commands] == [
        ("one \\\n  two", ("a…", "b")),
        ("three # why", ()),
    ]
