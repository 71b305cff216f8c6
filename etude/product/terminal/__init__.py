"""The terminal: `etude agent` as a person uses it.

`face` is the loop: it opens a session, reads what the user types and plays it. `show` puts a session's events on the
`screen`, `flow` the model's words as they come, `diffs` what changes in files; `questions` asks for permission;
`typing` owns the line that is typed, `commands` what stands behind a slash. Everything is appended and nothing redrawn
but one line of status, so scrollback stays as it is. Whatever comes from a model, a tool or a file goes through `plain`
first: none of it can drive the user's terminal.
"""
