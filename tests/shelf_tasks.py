"""Two training tasks on code as `etude tasks generate DIR --kind calls` makes them."""

from etude.rewards.mining.calls import training_task
from etude.tasks.realcalls import CallRecord

SHELF = '''\
"""Shelves."""


def label(text, width=12, dots=True):
    """A name that fits on a shelf."""
    words = text.split()
    label = " ".join(word.capitalize() for word in words)
    if len(label) > width and not text.isdigit():
        label = label[: width - 1]
        if dots:
            label = label + "~"
    return label


def share(total, parts):
    if parts <= 0:
        return 0
    each = total // parts
    return each * 2


def other(total):
    return total
'''


def record(function, bug, line, right, wrong, shown):
    """A task as `--kind calls` makes it."""
    return CallRecord(
        split="train", package="shelf", version="", licence="", home="shelf", function=function, path="shelf.py",
        bug=bug, line=line, right=right, wrong=wrong, files={"shelf.py": SHELF}, shown=shown, hidden=shown,
    )  # fmt: skip


LABEL = training_task(
    record(
        "label", "constant", 9, "        label = label[: width - 1]", "        label = label[: width - 2]",
        (("['corn flakes']", "'Corn Flakes'"), ("['bicarbonate of soda']", "'Bicarbonate~'"),
         ("['a b', 2]", "'A~'")),
    )
)  # fmt: skip
SHARE = training_task(
    record("share", "operator", 18, "    each = total // parts", "    each = total * parts",
           (("[12, 4]", "6"), ("[7, 0]", "0"), ("[9, 2]", "8")))
)  # fmt: skip
