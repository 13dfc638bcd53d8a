"""Scripts: rules by what the user said last, and the script of the codewords that proofs, tests and demos share."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from beyond.model.blocks import Block, Reply, Text, Thinking, ToolUse
from beyond.model.request import ModelRequest

Answer = Reply | Block | str | Sequence[Block]


class Steps:
    """Answers by how often the model has answered since the prompt: the first, then one after each round of tools."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = answers

    def __call__(self, request: ModelRequest) -> Answer:
        return self._answers[request.step] if request.step < len(self._answers) else "Done."


class InOrder:
    """Answers by arrival, whatever was asked; the last one goes on for good: 429, 429, 200."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self._lock = threading.Lock()

    def __call__(self, _request: ModelRequest) -> Answer:
        with self._lock:
            return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


Rule = Answer | Callable[[ModelRequest], Answer]
Script = Callable[[ModelRequest], Answer] | Mapping[str, Rule] | Sequence[tuple[str, Rule]]


def compiled(script: Script) -> Callable[[ModelRequest], Reply]:
    """A script as one function. Of rules, the first whose pattern is found in the last prompt answers; a plain answer
    is given once after its prompt, then (after its tool calls) "Done.", which is also said where no rule fits."""
    if callable(script):
        whole = script
        return lambda request: reply_of(whole(request))
    pairs = script.items() if isinstance(script, Mapping) else script
    rules = [(re.compile(pattern, re.DOTALL), rule if callable(rule) else Steps(rule)) for pattern, rule in pairs]

    def answer(request: ModelRequest) -> Reply:
        for pattern, rule in rules:
            if pattern.search(request.prompt):
                return reply_of(rule(request))
        return reply_of("Done.")

    return answer


def reply_of(answer: Answer) -> Reply:
    """The reply that a short form stands for."""
    if isinstance(answer, Reply):
        return answer
    if isinstance(answer, str):
        return Reply([Text(answer)])
    if isinstance(answer, Text | Thinking | ToolUse):
        return Reply([answer])
    return Reply(list(answer))


# --- calling the tools that the agent offers --------------------------------------------------------------------------

_WRITE = ("Write", "WriteFile", "write_file", "write")
_READ = ("Read", "ReadFile", "read_file", "read")
_SHELL = ("Bash", "Shell", "exec_command", "shell", "run_shell_command", "bash")
_AGENT = ("Agent", "Task", "task", "spawn_agent")
_PATH = ("file_path", "path", "absolute_path", "filename")
_CONTENT = ("content", "file_text", "text")
_COMMAND = ("command", "cmd")


def _tool(request: ModelRequest, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in request.tools), None)


def _call(request: ModelRequest, name: str, *given: tuple[Sequence[str], Any]) -> ToolUse:
    """A call of a tool: each value under the first of its names that the tool knows; what else it needs is made up."""
    schema = request.tools[name]
    known = schema.get("properties")
    properties: Mapping[str, Any] = known if isinstance(known, dict) else {}
    out: dict[str, Any] = {}
    for names, value in given:
        key = next((key for key in names if key in properties), names[0])
        wants = properties.get(key)
        as_list = isinstance(wants, dict) and wants.get("type") == "array" and isinstance(value, str)
        out[key] = ["bash", "-lc", value] if as_list else value
    for key in schema.get("required") or ():
        if key not in out:
            out[key] = _made_up(properties.get(key))
    return ToolUse(name, out)


def _made_up(schema: Any) -> Any:
    wants = schema if isinstance(schema, dict) else {}
    if wants.get("enum"):
        return wants["enum"][0]
    return {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}.get(str(wants.get("type")), "scripted")


def run(request: ModelRequest, command: str) -> list[Block]:
    """A call of the tool that runs a shell command."""
    name = _tool(request, _SHELL)
    return [_call(request, name, (_COMMAND, command))] if name else [Text(f"(no tool to run `{command}`)")]


def _path(request: ModelRequest, name: str, path: str) -> str:
    cwd = request.cwd
    properties = request.tools[name].get("properties") or {}
    return f"{cwd}/{path}" if cwd and ("file_path" in properties or "absolute_path" in properties) else path


def write(request: ModelRequest, path: str, content: str) -> list[Block]:
    """A call of the tool that writes a file of the project."""
    name = _tool(request, _WRITE)
    if name is None:
        return run(request, f"printf '%s' {shlex.quote(content)} > {shlex.quote(path)}")
    return [_call(request, name, (_PATH, _path(request, name, path)), (_CONTENT, content))]


def read(request: ModelRequest, path: str) -> list[Block]:
    """A call of the tool that reads a file of the project."""
    name = _tool(request, _READ)
    return [_call(request, name, (_PATH, _path(request, name, path)))] if name else run(request, f"cat {path}")


def delegate(request: ModelRequest, prompt: str) -> list[Block]:
    """A call of the tool that starts a subagent."""
    name = _tool(request, _AGENT)
    if name is None:
        return [Text("(no tool to delegate with)")]
    given: list[tuple[Sequence[str], Any]] = [(("description",), "look"), (("prompt", "message"), prompt)]
    properties = request.tools[name].get("properties") or {}
    if "subagent_type" in properties and b"- general-purpose:" in request.body:
        given.append((("subagent_type",), "general-purpose"))
    if "run_in_background" in properties:
        given.append((("run_in_background",), False))
    return [_call(request, name, *given)]


# --- the codewords ----------------------------------------------------------------------------------------------------

_CODEWORD = re.compile(r"\b[A-Z]{6,}\b")
_REMEMBER = re.compile(r"\bremember (?:the codeword )?([A-Z]{6,})\b")
_PLAIN = re.compile(r"\bplain ([A-Z]{6,})\b")
_ASKED = re.compile(r"[Ww]hat codewords")
_HANG = re.compile(r"\bplease hang(?: for (\d+))?")
_COMPACT = re.compile(r"too brief|summar", re.IGNORECASE)
_PHASES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
#: Long enough for a CLI that sends a short report back.
_REPORT = "The subagent's report: the directory was looked at, one command was run and it ended well. " * 5


def codewords(request: ModelRequest) -> list[str]:
    """Every word of six or more capitals in the messages, in order; those of the CLI's own instructions left out."""
    own = set(_CODEWORD.findall(request.instructions + json.dumps(request.data.get("tools"))))
    found = (word for text in request.texts for word in _CODEWORD.findall(text))
    return [word for word in dict.fromkeys(found) if word not in own and word != "SUBTASK"]


def codeword_script(request: ModelRequest) -> Answer:
    """Teaches, tells and delegates, with the tools of whichever agent CLI asks.

    "remember X": thinking, text and a file written; a read and a command at once; "Remembered X." "plain X": only the
    last of these. "What codewords did I teach you?": all that the request holds. "delegate this": a subagent, which
    runs a command and reports. "please hang": a command that takes 25 seconds (or "please hang for 3"). A request for
    a summary gets one with every codeword that it holds.
    """
    prompt, step = request.prompt, request.step
    if _ASKED.search(prompt):
        return f"Codewords I can see: {', '.join(codewords(request)) or 'none'}"
    taught = _REMEMBER.search(prompt)
    if taught and request.tools:
        return _remember(request, taught[1], step)
    plain = taught or _PLAIN.search(prompt)
    if plain:
        return f"Remembered {plain[1]}."
    if "delegate this" in prompt and request.tools:
        return [Text("Delegating."), *delegate(request, "SUBTASK please")] if step == 0 else "Delegated."
    if "SUBTASK" in prompt:
        return run(request, "echo from-subagent") if step == 0 and request.tools else _REPORT
    hang = _HANG.search(prompt)
    if hang and request.tools:
        return [Text("Working."), *run(request, _sleep(hang[1] or "25"))] if step == 0 else "Done."
    if _COMPACT.search(prompt):
        return f"<summary>SUMMARY of the work so far. Codewords: {' '.join(codewords(request))}</summary> {_REPORT}"
    return "Done."


def _sleep(seconds: str) -> str:
    # Claude Code 2.1.332 refuses a long `sleep` that stands alone.
    return f'python3 -c "import time; time.sleep({seconds})"'


def _remember(request: ModelRequest, word: str, step: int) -> Answer:
    times = sum(bool(_REMEMBER.search(text)) for text in request.prompts)
    phase = _PHASES[min(max(times, 1), len(_PHASES)) - 1]
    if step == 0:
        return [
            Thinking(f"I should keep {word} in mind."),
            Text("I will write notes."),
            *write(request, "notes.txt", f"phase {phase}\n"),
        ]
    if step == 1:
        return [*read(request, "notes.txt"), *run(request, "cat notes.txt && echo ok")]
    return f"Remembered {word}."
