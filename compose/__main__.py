"""`python -m compose` is `callboard`."""

from compose.cli import main

main()
