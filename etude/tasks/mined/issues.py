"""The issues of a repository, as somebody exported them: what people asked for, in their words.

Owns `Issue`, `read_issues` and `referenced_issue`. The file has a line of JSON for each: `number`, `title`, `body`.
GitHub's own export is of this form: `gh issue list --state all --json number,title,body --jq '.[]'`. Nothing is
downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from etude.config import Config, parse
from etude.tasks.json_lines import read_objects

_CLOSES = re.compile(r"\b(?:fix(?:e[sd])?|close[sd]?|resolve[sd]?)\b[\s:]*(?:#|gh-)(\d+)", re.I)
_NAMES = re.compile(r"(?:#|\bgh-|/issues/)(\d+)\b", re.I)


class Issue(Config):
    """One issue. Markdown, as people write it."""

    number: int = Field(ge=1)
    title: str
    body: str | None = None


def read_issues(path: Path) -> dict[int, Issue]:
    """By number. Raises ConfigError with the line's number and the field; fields that are not ours are left out."""
    found = {}
    for where, said in read_objects(path, "an issue is an object with number, title and body, one a line"):
        issue = parse({key: said[key] for key in Issue.model_fields if key in said}, Issue, where)
        found[issue.number] = issue
    return found


def referenced_issue(message: str, issues: Mapping[int, Issue]) -> Issue | None:
    """The issue that a commit's message says it closes, or else the first that it names."""
    for pattern in (_CLOSES, _NAMES):
        for number in pattern.findall(message):
            if (issue := issues.get(int(number))) is not None:
                return issue
    return None
