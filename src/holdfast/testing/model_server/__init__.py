"""A model server that says what a script tells it, in the providers' own protocols, with faults.

    python -m holdfast.testing.model_server SCRIPT.json --port 0

It stands in for OpenAI-compatible chat completions (`/v1/chat/completions`) and Anthropic messages
(`/v1/messages`), plain and streamed, in a process of its own. See docs/reference/models.md.
"""
