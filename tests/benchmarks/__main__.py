"""`python -m tests.benchmarks [NAME …] [--scale 0.1]`: on an embedded Postgres that syncs."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from compose.embedded import start_postgres
from tests.benchmarks import idle, steps, suspended

BENCHMARKS = {"steps": steps.run, "suspended": suspended.run, "idle": idle.run}


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        server = start_postgres(Path(folder) / "postgres", durable=True)
        try:
            for name in options.names or BENCHMARKS:
                asyncio.run(BENCHMARKS[name](server.url, scale=options.scale))
        finally:
            server.close()


if __name__ == "__main__":
    main()
