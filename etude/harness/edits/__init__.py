"""Search and replace for models: applied at the place that is meant, or refused with a message that helps.

Agents lose more turns to edits that do not match than to anything else. `replace` owns one edit and its four ways of
matching, from strict to tolerant; `places` finds where a text stands in a file; `indentation` translates between the
indentation a model wrote and the file's; `explain` writes the message of a refusal; and `hunks` reads several edits of
one call. All of it is pure: text in, text out. It knows neither tools nor sandboxes, and touches no file.
"""

from __future__ import annotations

from etude.harness.edits.hunks import Edit, parse_hunks
from etude.harness.edits.replace import EditRefused, Replacement, Tolerance, replace, replace_each

__all__ = ["Edit", "EditRefused", "Replacement", "Tolerance", "parse_hunks", "replace", "replace_each"]
