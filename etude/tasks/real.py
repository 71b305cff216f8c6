"""Tasks on real code: the set that choices are made on, and the exam.

Owns `real_tasks`. The development set `eval` has the bugs that packages' own tests show (`tasks.realcode`) and some
that calls show (`tasks.realcalls`); `exam` has calls alone, and no module or function of the other. The exam is for the
end: whoever looks at a result on it and then changes something has used it up.
"""

from __future__ import annotations

from etude.records import Task
from etude.tasks.realcalls import Split, called_tasks
from etude.tasks.realcode import suite_tasks


def real_tasks(split: Split = "eval") -> list[Task]:
    """One of the two sets, always the same in the same order. Neither is ever trained on."""
    return called_tasks("exam") if split == "exam" else [*suite_tasks(), *called_tasks("eval")]
