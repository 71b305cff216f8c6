"""Where the time of the last `make test` went: by file, and test by test.

    python tools/durations.py [build/tests.xml] [--tests 20] [--files 20]

`make test` keeps the times there, and prints its twenty slowest calls itself. A time counts the set-up of fixtures too.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def read(path: Path) -> dict[tuple[str, str], float]:
    """Seconds by file and test."""
    cases = ElementTree.parse(path).iter("testcase")
    return {(case.get("classname", ""), case.get("name", "")): float(case.get("time", 0)) for case in cases}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path, default=Path("build/tests.xml"))
    parser.add_argument("--tests", type=int, default=20, help="how many of the slowest tests")
    parser.add_argument("--files", type=int, default=20, help="how many of the slowest files")
    options = parser.parse_args()
    if not options.path.exists():
        print(f"{options.path} is not there: run `make test` first", file=sys.stderr)
        return 1
    times, files = read(options.path), Counter[str]()
    for (where, _), seconds in times.items():
        files[where] += seconds
    print(f"{sum(times.values()):.0f} s in {len(times)} tests of {len(files)} files")
    print("\n".join(f"{seconds:8.1f}  {name}" for name, seconds in files.most_common(options.files)), end="\n\n")
    slowest = sorted(times.items(), key=lambda each: -each[1])[: options.tests]
    print("\n".join(f"{seconds:8.1f}  {where}::{name}" for (where, name), seconds in slowest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
