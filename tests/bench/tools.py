"""Simulated tool calls: what was asked, what the model and the CLI's user see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from .corpus import Corpus, Project, SourceFile
from .lines import Json, token

CURRENT = " (file state is current in your context — no need to Read it back)"
ERRORS = 0.05


@dataclass(slots=True)
class Call:
    """One call with its result: `content` for the model, `detail` beside it."""

    name: str
    input: Json
    content: Any
    detail: Any
    error: bool = False
    took: int = 0


class Tools:
    """The tools of one conversation, at work on some files of its project."""

    def __init__(self, rng: Random, corpus: Corpus, project: Project, results: Path, shown: str) -> None:
        self.rng = rng
        self.corpus = corpus
        self.project = project
        self.hot = project.hot(rng)
        self.results = results
        self.shown = shown
        self.touched: list[SourceFile] = []

    def call(self) -> Call:
        draw = self.rng.random()
        if self.rng.random() < ERRORS:
            return self._failed(draw)
        if draw < 0.30:
            return self._read()
        if draw < 0.50:
            return self._edit()
        if draw < 0.59:
            return self._write()
        if draw < 0.71:
            return self._grep()
        return self._bash()

    def pick(self) -> SourceFile:
        return self.hot[int(self.rng.random() ** 1.6 * len(self.hot))]

    def _failed(self, draw: float) -> Call:
        rng, corpus = self.rng, self.corpus
        path = self.project.path(self.pick())
        if draw < 0.5:
            code = rng.randint(1, 3)
            command, output = self._traceback()
            text = f"Exit code {code}\n{output}"
            name = "Bash"
            given: Json = {"command": command, "description": corpus.prose(rng, 4)}
        elif draw < 0.75:
            text = "File does not exist. Note: your current working directory is "
            text += f"{self.project.cwd}."
            name = "Read"
            given = {"file_path": f"{self.project.cwd}/{corpus.name(rng)}.py"}
        else:
            old = "\n".join(corpus.code(rng, 3))
            text = f"String to replace not found in file.\nString: {old}"
            new = "\n".join(corpus.code(rng, 3))
            name = "Edit"
            given = {"replace_all": False, "file_path": path}
            given |= {"old_string": old, "new_string": new}
        shown = f"<tool_use_error>{text}</tool_use_error>" if name == "Edit" else text
        return Call(name, given, shown, f"Error: {text}", True)

    def _read(self) -> Call:
        file = self.pick()
        path = self.project.path(file)
        self.touched.append(file)
        total = len(file.lines)
        given: Json = {"file_path": path}
        if total <= 260 or self.rng.random() < 0.04:
            start, part = 1, [*file.lines, ""]
        else:
            count = self.rng.choice((60, 80, 120, 160, 200, 260))
            start = self.rng.randrange(0, max(1, total - count), 20) + 1
            part = file.lines[start - 1 : start - 1 + count]
            given |= {"offset": start, "limit": count}
        numbered = "\n".join(f"{n}\t{line}" for n, line in enumerate(part, start))
        detail = {
            "type": "text",
            "file": {
                "filePath": path,
                "content": "\n".join(part),
                "numLines": len(part),
                "startLine": start,
                "totalLines": total + 1,
            },
        }
        return Call("Read", given, numbered, detail)

    def _edit(self) -> Call:
        file = self.pick()
        path = self.project.path(file)
        original = file.text
        lines = len(file.lines)
        start, old, new = file.edit(self.rng, self.corpus)
        patch = [self._hunk(file, start, old, new)]
        before, after = "\n".join(old), "\n".join(new)
        given = {"replace_all": False, "file_path": path}
        given |= {"old_string": before, "new_string": after}
        detail = {
            "filePath": path,
            "oldString": before,
            "newString": after,
            "originalFile": original if lines <= 220 else None,
            "structuredPatch": patch,
            "userModified": False,
            "replaceAll": False,
        }
        text = f"The file {path} has been updated successfully.{CURRENT}"
        return Call("Edit", given, text, detail)

    def _hunk(self, file: SourceFile, start: int, old: list[str], new: list[str]) -> Json:
        first = max(0, start - 3)
        lead = file.lines[first:start]
        rest = file.lines[start + len(new) : start + len(new) + 3]
        around = len(lead) + len(rest)
        marked = [" " + line for line in lead] + ["-" + line for line in old]
        marked += ["+" + line for line in new] + [" " + line for line in rest]
        return {
            "oldStart": first + 1,
            "oldLines": around + len(old),
            "newStart": first + 1,
            "newLines": around + len(new),
            "lines": marked,
        }

    def _write(self) -> Call:
        rng, corpus, project = self.rng, self.corpus, self.project
        lines = corpus.code(rng, rng.randint(15, 160))
        if rng.random() < 0.7 or len(project.files) > 120:
            file = self.pick()
            kind, original = "update", file.text
            old = file.lines
            keep = len(old) // 2
            end = keep + (len(lines) if len(old) > 400 else 20)
            file.replace([*old[:keep], *lines, *old[end:]])
            patch = [self._hunk(file, keep, old[keep:end], lines)]
            text = f"The file {project.path(file)} has been updated successfully."
        else:
            file = SourceFile(f"{corpus.name(rng)}.py", lines)
            project.files.append(file)
            self.hot.insert(0, file)
            kind, original, patch = "create", None, []
            text = f"File created successfully at: {project.path(file)}"
        given = {"file_path": project.path(file), "content": file.text}
        detail = {
            "type": kind,
            "filePath": project.path(file),
            "content": file.text,
            "structuredPatch": patch,
            "originalFile": original,
            "userModified": False,
        }
        return Call("Write", given, text + CURRENT, detail)

    def _grep(self) -> Call:
        rng = self.rng
        words = [w for w in rng.choice(self.pick().lines or [""]).split() if len(w) > 3]
        pattern = rng.choice(words).strip("().,:\"'")[:40] if words else "return"
        found: list[str] = []
        names: list[str] = []
        for file in self.hot:
            hits = [(n, t) for n, t in enumerate(file.lines, 1) if pattern in t]
            if hits:
                names.append(file.name)
                found += [f"{file.name}:{n}:{text}" for n, text in hits[:25]]
        given: Json = {"pattern": pattern, "path": self.project.cwd}
        if rng.random() < 0.35:
            given["output_mode"] = "files_with_matches"
            count = len(names)
            text = f"Found {count} files\n" + "\n".join(names)
            detail: Json = {"mode": "files_with_matches", "filenames": names}
            detail["numFiles"] = count
        else:
            given |= {"output_mode": "content", "-n": True}
            found = found[:80]
            text = "\n".join(found) or "No matches found"
            detail = {"mode": "content", "numFiles": 0, "filenames": []}
            detail |= {"content": "\n".join(found), "numLines": len(found)}
        return Call("Grep", given, text, detail)

    def _bash(self) -> Call:
        rng = self.rng
        draw = rng.random()
        if draw < 0.30:
            command, output = self._tests()
        elif draw < 0.50:
            command, output = self._diff()
        elif draw < 0.65:
            command, output = self._log()
        elif draw < 0.85:
            command, output = self._listing()
        else:
            file = self.pick()
            start = rng.randint(1, max(1, len(file.lines)))
            end = start + rng.randint(10, 90)
            command = f"sed -n {start},{end}p {file.name}"
            output = "\n".join(file.lines[start - 1 : end])
        if rng.random() < 0.35:
            script = "\n".join(self.corpus.code(rng, rng.randint(5, 60)))
            command = f"python - <<'EOF'\n{script}\nEOF\n{command}"
        given = {"command": command, "description": self.corpus.prose(rng, 5)}
        detail: Json = {"stdout": output, "stderr": "", "interrupted": False}
        detail |= {"isImage": False, "noOutputExpected": False}
        content = output or "(Bash completed with no output)"
        if rng.random() < 0.003:
            content = self._spilled(detail)
        return Call("Bash", given, content, detail)

    def _spilled(self, detail: Json) -> str:
        """A large output: kept in a file, with a preview in the transcript."""
        text = "\n".join(self._tests()[1] for _ in range(24))
        self.results.mkdir(parents=True, exist_ok=True)
        name = token(self.rng, "b", 8).lower() + ".txt"
        (self.results / name).write_text(text, encoding="utf-8")
        size = len(text.encode())
        detail["stdout"] = text[:30000]
        detail["persistedOutputPath"] = f"{self.shown}/{name}"
        detail["persistedOutputSize"] = size
        head = f"<persisted-output>\nOutput too large ({size / 1024:.1f}KB). "
        head += f"Full output saved to: {self.shown}/{name}\n\n"
        preview = f"Preview (first 2KB):\n{text[:2000]}"
        return f"{head}{preview}\n...\n</persisted-output>"

    def _tests(self) -> tuple[str, str]:
        rng, corpus = self.rng, self.corpus
        file = self.pick().name
        out = ["=" * 24 + " test session starts " + "=" * 25]
        count = rng.randint(5, 60)
        for number in range(count):
            name = f"{file}::test_{corpus.name(rng)}"
            out.append(f"{name} PASSED{100 * (number + 1) // count:>30}%")
        out.append(f"{'=' * 20} {count} passed in {rng.random() * 9:.2f}s {'=' * 20}")
        return f"python -m pytest -v {file}", "\n".join(out)

    def _diff(self) -> tuple[str, str]:
        file = self.pick()
        start = self.rng.randrange(max(1, len(file.lines)))
        new = file.lines[start : start + self.rng.randint(4, 30)]
        old = self.corpus.changed(self.rng, new)
        hunk = self._hunk(file, start, old, new)
        head = [f"diff --git a/{file.name} b/{file.name}"]
        head.append(f"index {self.rng.getrandbits(28):07x}..{self.rng.getrandbits(28):07x} 100644")
        head += [f"--- a/{file.name}", f"+++ b/{file.name}"]
        head.append(f"@@ -{hunk['oldStart']},{hunk['oldLines']} +{hunk['newStart']},{hunk['newLines']} @@")
        return f"git diff {file.name}", "\n".join(head + hunk["lines"])

    def _log(self) -> tuple[str, str]:
        rng = self.rng
        count = rng.randint(5, 25)
        lines = [f"{rng.getrandbits(40):010x} {self.corpus.prose(rng, rng.randint(4, 9))}" for _ in range(count)]
        return f"git log --oneline -{count}", "\n".join(lines)

    def _listing(self) -> tuple[str, str]:
        rng = self.rng
        lines = [f"total {rng.randint(100, 900)}"]
        for file in sorted(self.project.files, key=lambda f: f.name)[:45]:
            size = sum(map(len, file.lines)) + len(file.lines)
            when = f"{rng.randint(1, 28):2} {rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
            lines.append(f"-rw-r--r-- 1 dev dev {size:>7} Nov {when} {file.name}")
        return "git status --short && ls -la", "\n".join(lines)

    def _traceback(self) -> tuple[str, str]:
        rng = self.rng
        out = ["Traceback (most recent call last):"]
        for _ in range(rng.randint(2, 8)):
            file = self.pick()
            at = rng.randrange(max(1, len(file.lines)))
            name = self.corpus.name(rng)
            out.append(f'  File "{self.project.path(file)}", line {at + 1}, in {name}')
            out.append("    " + (file.lines or ["pass"])[at].strip())
        out.append(f"ValueError: {self.corpus.prose(rng, 9)}")
        return f"python -m {self.corpus.name(rng)}", "\n".join(out)
