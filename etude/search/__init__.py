"""Search in a body of code by meaning, or as near to it as the index at hand comes.

`base` owns what an index is and what it answers with; `lexical` one that ranks by words, without a model. An index
holds texts that it is given: it knows no disk, no sandbox and no agent. Imports no torch.
"""

from __future__ import annotations

from etude.search.base import CodeIndex, Hit
from etude.search.lexical import LexicalIndex

__all__ = ["CodeIndex", "Hit", "LexicalIndex"]
