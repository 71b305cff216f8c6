"""The agent in an editor: the Agent Client Protocol on stdin and stdout.

Zed, JetBrains' IDEs and others start `etude acp` and drive it: any number of sessions in one process, each of them the
same session that a terminal or a script opens (`product.agent`). What the editor sees is a projection of its events
(`projection`), what it asks for is in `face`. Imports the protocol's package, which takes a second: only
`etude.cli.acp` imports this one.
"""
