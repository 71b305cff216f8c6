"""Search and replace as models write it: found where it is meant, or refused with what would have been found.

Agents lose more turns to edits that do not match than to anything else. `replace` owns one edit and the ladder of
tolerance it climbs, `places` where an asked text stands in a file, `indentation` the translation between the
indentation a model wrote and the file's, `explain` what a refused model is told, and `hunks` how several edits are
written in one call. All of it is pure: text in, text out. It knows neither tools nor sandboxes, and touches no file.
"""

from __future__ import annotations

from etude.harness.edits.hunks import Edit, parse_hunks
from etude.harness.edits.replace import Refused, Replaced, Tolerance, replace, replace_each

__all__ = ["Edit", "Refused", "Replaced", "Tolerance", "parse_hunks", "replace", "replace_each"]
