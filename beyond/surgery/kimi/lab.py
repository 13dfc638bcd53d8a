"""How Kimi Code runs in a scratch home, headless, and what it needs to offer a conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from beyond.surgery.base import Scratch

#: `/compact` is for the terminal only; a conversation that is nearly full is compacted by itself.
COMPACT: Final = None
_CONFIG = """default_model = "scripted"
telemetry = false

[providers.lab]
type = "kimi"
base_url = "{url}/v1"
api_key = "sk-made-up"

[models.scripted]
provider = "lab"
model = "scripted-model"
max_context_size = 262144
"""


def scratch(home: Path, url: str) -> Scratch:
    """A set-up whose only provider is at `url`."""
    env = {"KIMI_CODE_HOME": str(home / ".kimi-code"), "KIMI_DISABLE_TELEMETRY": "1", "KIMI_CODE_NO_AUTO_UPDATE": "1"}
    return Scratch(env, {".kimi-code/config.toml": _CONFIG.format(url=url)})


def ask(prompt: str, resume: str | None = None) -> tuple[str, ...]:
    """One prompt, in a new conversation or an old one."""
    return ("kimi", "-p", prompt, *(("-S", resume) if resume else ()))


def memory(store: Path, directory: str) -> str | None:
    """Kimi Code keeps no notes across conversations."""
    del store, directory
    return None


def listed(store: Path, conversation: str, directory: str) -> str | None:
    """0.28 and 0.29 offer what the index names; 2.1.0 what lies in the directory's folder."""
    folders = [path for path in (store / "sessions").glob(f"wd_*/{conversation}") if path.is_dir()]
    if len(folders) != 1:
        return f"{len(folders)} folders of the conversation in the store"
    folder = folders[0]
    try:
        state = json.loads((folder / "state.json").read_bytes())
        lines = [json.loads(line) for line in (store / "session_index.jsonl").read_bytes().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        return f"state.json or the index can't be read ({error})"
    if (state.get("workDir") or state.get("cwd")) != directory:
        return "state.json names another directory"
    mine = [line for line in lines if line.get("sessionId") == conversation]
    if not mine or mine[-1].get("sessionDir") != str(folder) or mine[-1].get("workDir") != directory:
        return "the index doesn't name it"
    return None
