"""Run the program `callboard` for `python -m compose`."""

from compose._cli import main

main()
