"""Packages that are installed here, packed again as wheels, so that the real pip can install them without a network."""

import importlib.metadata
import zipfile

PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")


def pack(directory, names):
    """Write a wheel of each into `directory`; programs too."""
    for name in names:
        found = importlib.metadata.distribution(name)
        with zipfile.ZipFile(directory / f"{name}-{found.version}-py3-none-any.whl", "w") as wheel:
            for file in found.files or []:
                if ".." not in file.parts and file.suffix != ".pyc":
                    wheel.write(file.locate(), str(file))
                elif file.parts[-2:] == ("bin", name):
                    wheel.write(file.locate(), f"{name}-{found.version}.data/scripts/{name}")
    return directory
