"""Search in a body of code: pieces by what a question says, and files that a pattern may match.

`words`, `syntax`, `pieces` and `content` own what is known of one content; `store` and `postings` where that is kept;
`ranking` which pieces answer a question, `patterns` what a line must hold; `index` puts them together for one
workspace, and `workspace` for a directory of this machine. Imports no torch.
"""

from __future__ import annotations

from etude.search.base import Hit
from etude.search.index import Index, index_version, settled, way_of_taking_in
from etude.search.store import Store

__all__ = ["Hit", "Index", "Store", "index_version", "settled", "way_of_taking_in"]
