"""Sessions over HTTP: what a page, an editor or a script needs to have agents work on this machine.

`app` is the server as a process, `routes` what may be asked, `bodies` in what form, `openapi` the same as a document,
and `errors` how requests are refused. `hub` owns the sessions that are open, `live` one of them, `channel` what goes on
in it beside its log, and `stream` the two as server-sent events. The log stays the truth: a server that was killed
knows everything it had sent, and goes on.
"""
