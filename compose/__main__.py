"""Run the program `callboard` for `python -m compose`."""

from compose.cli import main

main()
