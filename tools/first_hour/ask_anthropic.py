"""A call of a tool by Anthropic's SDK, streamed, from the server whose address and token are in URL and ETUDE_TOKEN."""

import os

import anthropic

client = anthropic.Anthropic(base_url=os.environ["URL"], auth_token=os.environ["ETUDE_TOKEN"], max_retries=0)
path = {"type": "object", "properties": {"path": {"type": "string", "enum": ["README.md", "LICENSE"]}}}
tool = {"name": "read_file", "description": "Read a file.", "input_schema": {**path, "required": ["path"]}}
asked = {"model": client.models.list().data[0].id, "tools": [tool], "max_tokens": 100}
messages = [{"role": "user", "content": "What does README.md say?"}]
with client.messages.stream(messages=messages, tool_choice={"type": "any"}, **asked) as stream:
    said = stream.get_final_message()
call = next(block for block in said.content if block.type == "tool_use")
print(call.name, call.input)
result = {
    "type": "tool_result",
    "tool_use_id": call.id,
    "content": "# Etude: train a coding agent inside its own product",
}
messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
print("then:", client.messages.create(messages=messages, **asked).content)
