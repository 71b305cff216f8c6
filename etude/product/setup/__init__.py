"""The first start: finds models that can be used here, asks for what is missing, tries it, and writes agent.toml.

`found` looks, `trial` tries, `written` writes the file, `ask` talks with a person. None of them keeps a key: the file
names the variable, or the file, that holds it.
"""
