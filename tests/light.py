"""A virtual environment with what `pip install .` brings and nothing else: no torch, no Ray, no server.

The packages are links to those of the environment that runs the tests, so it takes a second and no network. Etude is
there as its metadata and, where no wheel of it is to be installed, by a path file.
"""

import re
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]


def light_packages(name: str = "etude") -> set[str]:
    """The distributions that it needs without any extra, itself left out."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for line in distribution(waiting.pop()).requires or ():
            need = re.split(r"[^\w.-]", line, maxsplit=1)[0].lower().replace("_", "-")
            if "extra ==" in line or need in found:
                continue
            try:
                distribution(need)
            except PackageNotFoundError:  # for another system
                continue
            found.add(need)
            waiting.append(need)
    return found


def light_environment(root: Path, with_etude: bool = True) -> Path:
    """Make it in `root`, which is not there yet; its interpreter."""
    venv.create(root, symlinks=True)
    packages = next(root.glob("lib/python*/site-packages"))
    names = [*light_packages(), *(["etude"] if with_etude else [])]
    for each in map(distribution, names):
        for top in {Path(file).parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(each.locate_file(top))
    return root / "bin" / "python"


def run(python: Path, *arguments: object, cwd: Path, **settings: object) -> subprocess.CompletedProcess[str]:
    """`etude` by that interpreter."""
    command = [str(python), "-m", "etude.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, **settings)


if __name__ == "__main__":
    print(light_environment(Path(sys.argv[1])))
