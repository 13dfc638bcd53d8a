"""The scripted model: a server that stands in for the model APIs, on loopback, for proofs, tests and demos.

>>> from beyond.model import ScriptedModel, ToolUse
>>> with ScriptedModel({"list the files": [ToolUse("Bash", {"command": "ls"})]}) as model:
...     model.url.startswith("http://127.0.0.1:")
True

Point an agent CLI or an SDK at `url` (Anthropic), or at `url` + "/v1" (OpenAI). Afterwards `requests` holds what it
sent, each with what was answered in `sent`, and `invalid` what the real API would have refused. Standard library only.
"""

from beyond.model.blocks import Block, Reply, Sent, Text, Thinking, ToolUse, Usage, failure
from beyond.model.request import ModelRequest, Result, Turn
from beyond.model.script import InOrder, Rule, Script, Steps, codeword_script, delegate, read, run, write
from beyond.model.server import ScriptedModel

__all__ = [
    "Block",
    "InOrder",
    "ModelRequest",
    "Reply",
    "Result",
    "Rule",
    "Script",
    "ScriptedModel",
    "Sent",
    "Steps",
    "Text",
    "Thinking",
    "ToolUse",
    "Turn",
    "Usage",
    "codeword_script",
    "delegate",
    "failure",
    "read",
    "run",
    "write",
]
