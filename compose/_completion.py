"""`callboard completion`: scripts by which a shell completes commands and options."""

from __future__ import annotations

import sys
from typing import Literal

from compose._commands.app import app
from compose._commands.options import DebugFlag, Flag
from compose._commands.output import Exit, print_json
from compose._commands.terminal import say


def completion(
    shell: Literal["bash", "zsh", "fish"],
    /,
    *,
    install: Flag = False,
    json: Flag = False,
    debug: DebugFlag = False,
) -> int:
    """Print the completion script of a shell, or install it in the shell's folder for completions.

    Examples:
    `callboard completion bash > ~/.local/share/bash-completion/completions/callboard`;
    `callboard completion zsh --install`;
    `callboard completion fish --json`

    Parameters
    ----------
    shell
        bash, zsh or fish.
    install
        Write the script to the shell's folder for completions, and print the file's path. The
        command does not change the start file of your shell.
    json
        Print JSON for programs: the script, or the path of the written file.
    """
    del debug  # `compose._cli` reads this option for every command
    if install:
        path = app.install_completion(shell=shell, add_to_startup=False)
        if json:
            print_json({"shell": shell, "file": str(path)})
        else:
            say(f"wrote {path}; open a new shell")
        return Exit.OK
    script = app.generate_completion(shell=shell)
    if json:
        print_json({"shell": shell, "script": script})
    else:
        sys.stdout.write(script)
    return Exit.OK
