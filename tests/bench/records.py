"""Lines about the CLI itself: listings, and 2.1.332's records of its requests."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from random import Random

from .corpus import Corpus, Project
from .lines import Json, Writer, encode, uuid4

TOOLS = ("Agent Bash Edit Glob Grep ListAgents Read ReportFindings ScheduleWakeup Skill ToolSearch Workflow Write").split()
SKILLS = ("dataviz", "update-config", "keybindings-help", "simplify", "code-review")
AGENTS = ("claude", "Explore", "general-purpose", "Plan")
BETAS = (
    "claude-code-20250219 interleaved-thinking-2025-05-14"
    " context-management-2025-06-27 per-turn-control-2026-07-01"
    " mid-conversation-tool-changes-2026-07-01 thinking-token-count-2026-05-13"
    " advanced-tool-use-2025-11-20 effort-2025-11-24"
).split()

AGENT_SOURCE = "agent:builtin:general-purpose"


class Fixed:
    """The CLI's own prose, the same in every conversation."""

    def __init__(self, corpus: Corpus) -> None:
        rng = Random("the prose of the CLI")
        self.skills = "\n".join(f"- {name}: {corpus.prose(rng, 140)}" for name in SKILLS)
        self.agents = [f"- {name}: {corpus.prose(rng, 60)}" for name in AGENTS]
        self.environment = corpus.prose(rng, 120)
        self.bypass = corpus.prose(rng, 90)
        self.system = [corpus.markdown(rng, n) for n in (1500, 350, 300, 250)]
        self.tools: list[Json] = [self._tool(corpus, rng, name) for name in TOOLS]

    @staticmethod
    def _tool(corpus: Corpus, rng: Random, name: str) -> Json:
        names = {corpus.name(rng) for _ in range(rng.randint(2, 7))}
        properties = {key: {"description": corpus.prose(rng, 20), "type": "string"} for key in sorted(names)}
        schema: Json = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        schema |= {"type": "object", "properties": properties}
        schema |= {"required": sorted(names)[:1], "additionalProperties": False}
        text = corpus.markdown(rng, rng.randint(80, 600))
        return {"name": name, "description": text, "input_schema": schema}


@lru_cache(maxsize=1)
def fixed(corpus: Corpus) -> Fixed:
    return Fixed(corpus)


def listings(w: Writer, corpus: Corpus, project: Project) -> None:
    """The attachments that follow a first prompt or a compaction."""
    text = fixed(corpus)
    if w.new:
        snapshot: Json = {"workingDirectory": project.cwd, "isWorktree": False}
        snapshot |= {"isGitRepo": True, "additionalWorkingDirectories": []}
        snapshot |= {"platform": "linux", "shell": "bash"}
        snapshot["osVersion"] = "Linux 6.1.0"
        environment = f"# Environment\n{project.cwd}\n{text.environment}"
        w.attachment({"type": "environment", "snapshot": snapshot}, environment)
        powered = f"You are powered by the model named {w.model}."
        identity = {"modelId": w.model, "marketingName": "Opus 5.5"}
        identity["knowledgeCutoff"] = "June 2026"
        value = {"type": "model", "identity": identity, "text": powered}
        w.attachment(value, powered)
    if w.agent is None:
        listing: Json = {"type": "agent_listing_delta", "addedTypes": list(AGENTS)}
        listing["addedLines"] = text.agents
        if w.new:
            listing |= {"builtInTypes": list(AGENTS), "builtInPluginTypes": []}
        listing |= {"removedTypes": [], "isInitial": True, "showConcurrencyNote": True}
        w.attachment(listing, "\n".join(text.agents))
    skills: Json = {"type": "skill_listing", "content": text.skills}
    skills |= {"skillCount": 11, "isInitial": True, "names": list(SKILLS)}
    if w.new:
        digests = [hashlib.sha256(name.encode()).hexdigest()[:16] for name in SKILLS]
        skills["digests"] = digests
    w.attachment(skills, text.skills)
    if w.new:
        mode: Json = {"type": "auto_mode", "autoModeConsentFlow": False}
        mode |= {"finishExposedWork": False, "bashFirst": True}
        mode |= {"bashFirstSteer": "relaxed", "steerOnly": True, "bypass": True}
        w.attachment(mode, text.bypass)
        date = {"type": "date", "date": w.tick(3)[:10]}
        w.attachment(date, f"Today's date is {date['date']}.", late=True)
        snapshot = {"type": "prompt_snapshot", "systemPrompt": text.system}
        snapshot |= {"reminderFold": False, "echoWireToolInputs": False}
        snapshot["contextRendering"] = "announced"
        w.attachment(snapshot, late=True)


class Requests:
    """2.1.332's `api-request*` lines: whole prompts once, then what was added."""

    def __init__(self, writer: Writer, corpus: Corpus) -> None:
        self.w = writer
        self.corpus = corpus
        self.tools: list[str] = []
        self.base: str | None = None
        self.shape = ""
        self.keep = 0
        self.pending: str | None = None
        self.snapshot = False

    def restart(self, process: bool) -> None:
        """A new process, or a compaction: the next request is written whole."""
        self.base = None
        if process:
            self.shape = ""
            self.snapshot = False
        self.keep = 0

    def prompt(self, text: str) -> None:
        self.pending = text

    def _line(self, kind: str, **fields: object) -> None:
        head: Json = {"type": kind, "sessionId": self.w.session}
        if self.w.agent is not None:
            head["agentId"] = self.w.agent
        self.w.put({**head, **fields})

    def _hash(self) -> str:
        return f"{self.w.rng.getrandbits(256):064x}"

    def _blob(self, role: str, texts: list[str], **more: object) -> str:
        content = [{"type": "text", "text": text} for text in texts]
        message: Json = {"role": role, "content": content, **more}
        digest = hashlib.sha256(encode(message).encode()).hexdigest()
        self._line("api-request-blob", hash=digest, message=message)
        return digest

    def _whole(self) -> list[str]:
        w, text = self.w, fixed(self.corpus)
        head = "You are a Claude agent, built on Anthropic's Claude Agent SDK."
        system = "\n\n".join([*text.system, f"Primary working directory: {w.cwd}"])
        blocks = [{"type": "text", "text": part} for part in (head, system)]
        if not self.shape:
            shape = {"system": blocks, "tools": text.tools}
            self.shape = hashlib.sha256(encode(shape).encode()).hexdigest()
            fields = {"shapeHash": self.shape, "timestamp": w.tick(3)}
            fields["version"] = w.version
            self._line("api-request-shape", **fields, shape=shape)
        reminder = f"<system-reminder>\n{text.environment}\n</system-reminder>"
        first = self._blob("user", [reminder, text.bypass, self.pending or ""])
        parts = "\n\n".join([*text.agents, text.skills, text.environment])
        config = {"effort": w.effort}
        return [first, self._blob("system", [parts], output_config=config)]

    def send(self) -> str:
        """The request of the next message: its id, which that message names."""
        w = self.w
        whole = self.base is None
        tail = self._whole() if whole else [self._hash(), self._hash()]
        if self.pending is not None and not whole:
            tail.append(self._blob("user", [self.pending]))
        self.pending = None
        identity = uuid4(w.rng)
        edits = [{"type": "clear_thinking_20251015", "keep": "all"}]
        params: Json = {"model": w.model, "betas": BETAS, "max_tokens": 128000}
        params["thinking"] = {"type": "adaptive", "display": "omitted"}
        params["context_management"] = {"edits": edits}
        params["output_config"] = {"effort": w.effort}
        source = "repl_main_thread" if w.interactive else "sdk"
        fields: Json = {"id": identity, "timestamp": w.tick(3), "version": w.version}
        fields["querySource"] = source if w.agent is None else AGENT_SOURCE
        fields |= {"shapeHash": self.shape, "params": params}
        fields |= {"thread": {"type": "none"}, "echoWireToolInputs": False}
        if not whole:
            fields["base"] = self.base
        fields |= {"keep": self.keep, "tail": tail}
        ephemeral = {"type": "ephemeral"}
        last = self.keep + len(tail) - 1
        paths = (["system", 0], ["system", 1], ["messages", last, "content", 0])
        fields["cacheControl"] = [{"path": p, "value": ephemeral} for p in paths]
        fields["requestDigest"] = self._hash()
        self._line("api-request", **fields)
        self.base = identity
        self.keep += len(tail)
        return identity

    def used(self, names: list[str]) -> None:
        """The growing list of tools; after a first result the prompt once more."""
        fresh = [name for name in dict.fromkeys(names) if name not in self.tools]
        if fresh:
            self.tools += fresh
            self.w.side("tools-used", tools=self.tools)

    def described(self) -> None:
        """Once a process: the tools as they were sent."""
        if self.snapshot:
            return
        self.snapshot = True
        text = fixed(self.corpus)
        tools = [{"name": t["name"], "description": t["description"], "schema": t} for t in text.tools]
        value: Json = {"type": "prompt_snapshot", "systemPrompt": text.system}
        value |= {"tools": tools, "cliPrefix": "You are a Claude agent."}
        value |= {"reminderFold": False, "systemTurns": True, "toolChangeHeader": True}
        value |= {"inlineTools": False, "keptReminders": False}
        value |= {"echoWireToolInputs": False, "contextRendering": "announced"}
        self.w.attachment(value, late=True)

    def cost(self, tokens: int, messages: int) -> None:
        """The last line of a process."""
        w, spent = self.w, round(tokens * 2e-5 + messages * 0.01, 6)
        used: Json = {"inputTokens": tokens, "outputTokens": 60 * messages}
        used |= {"thinkingTokens": 0, "cacheReadInputTokens": tokens * messages}
        used |= {"cacheCreationInputTokens": tokens}
        used |= {"cacheCreationEphemeral5mInputTokens": tokens}
        used |= {"cacheCreationEphemeral1hInputTokens": 0, "webSearchRequests": 0}
        used["costUSD"] = spent
        line: Json = {"totalCostUSD": spent, "totalAPIDuration": messages * 900}
        line["totalAPIDurationWithoutRetries"] = messages * 890
        line |= {"totalToolDuration": messages * 70, "totalLinesAdded": messages}
        line |= {"totalLinesRemoved": messages // 2, "totalDuration": messages * 1200}
        line |= {"startTime": w.now, "modelUsage": {w.model: used}}
        w.put({"type": "cost-state", "sessionId": w.session, **line} | {"hasUnknownModelCost": False})
