"""What a judge is asked about a change to a repository, beside what its tests say: one criterion a line.

Owns `CHANGE`, the rubric of mined, generated and imported tasks. Each is answered by yes or no, from the change alone.
"""

CHANGE = (
    "The change does what the task asks for and nothing else: there are no unrelated edits.",
    "New code follows the naming, layout and idioms of the code around it.",
    "Nothing is left behind that is dead, commented out, or there for debugging only.",
    "The change mends the cause where it lies, and does not work around it at the place where it shows.",
)
