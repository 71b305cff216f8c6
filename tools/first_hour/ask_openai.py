"""A call of a tool by OpenAI's SDK, from the server whose address and token are in URL and ETUDE_TOKEN."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["URL"] + "/v1", api_key=os.environ["ETUDE_TOKEN"], max_retries=0)
path = {"type": "object", "properties": {"path": {"type": "string", "enum": ["README.md", "LICENSE"]}}}
tool = {"name": "read_file", "description": "Read a file.", "parameters": {**path, "required": ["path"]}}
messages = [{"role": "user", "content": "What does README.md say?"}]
asked = {"model": client.models.list().data[0].id, "tools": [{"type": "function", "function": tool}], "max_tokens": 100}
said = client.chat.completions.create(messages=messages, tool_choice="required", **asked).choices[0].message
call = said.tool_calls[0]
print(call.function.name, call.function.arguments)
result = {"role": "tool", "tool_call_id": call.id, "content": "# Etude: train a coding agent inside its own product"}
messages += [said.model_dump(exclude_none=True), result]
print("then:", repr(client.chat.completions.create(messages=messages, **asked).choices[0].message.content))
