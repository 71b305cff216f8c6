"""Runs the guard from its code where this version of Python compiled it, else from its source: to compile takes
longer than to judge most answers. /tests/guard.code is (magic number, code marshalled, source, how many runs), itself
marshalled.
"""

import marshal
from _frozen_importlib_external import MAGIC_NUMBER

with open("/tests/guard.code", "rb") as file:
    magic, code, source, runs = marshal.load(file)
space: dict = {"__name__": "guard"}
exec(marshal.loads(code) if magic == MAGIC_NUMBER else source, space)
space["main"](runs)
