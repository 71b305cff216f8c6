"""The engine over HTTP, in the words that OpenAI's clients and vLLM's users already speak.

`app` is the process, `service` what all routes share (admission, the requests under way, draining), `bodies` what may
be asked, `prompts` how messages become token ids, `flight` how they become text again while they are sampled, and
`chat`, `completions`, `responses`, `anthropic`, `generate` and `control` the routes. Token ids are the only truth:
`turns` keeps those of what was said, so that a conversation sent back as text goes on from the ids that were sampled.
"""
