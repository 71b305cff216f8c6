"""Repositories for tests of corpora: files of different kinds, under licences, with a history."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from users_git import GIT, git

MIT = """MIT License

Copyright (c) 2026 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy of this software, to deal in it without
restriction.
"""
GPL = "                    GNU GENERAL PUBLIC LICENSE\n                       Version 3, 29 June 2007\n"


def module(name: str, count: int = 12) -> str:
    """A module whose every function is another one than those of other names."""
    functions = [
        f"def {name}_{at}({name}, other):\n    total = {name} * {at} + other\n"
        f"    return [total - {name}_{at}_each for {name}_{at}_each in range(total)]\n"
        for at in range(count)
    ]
    return f'"""What {name} is for."""\n\n' + "\n\n".join(functions)


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def repository(root: Path, files: Mapping[str, str | bytes], day: str = "2026-01-10") -> Path:
    """With one commit of that day more than before."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / ".git").exists():
        git(root, "init", "-q")
    write(root, files)
    git(root, "add", "-A")
    when = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"{day}T12:00:00Z")
    subprocess.run([*GIT, "commit", "-qm", "work"], cwd=root, env=os.environ | when, check=True, timeout=60)
    return root
