"""`bnd show`, `runs` and `step`: what a reader sees of branches, subagents, marks and odd characters."""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from typing import Any

import pytest

from tests.reading import CASES, FIXTURES
from tests.terminal import on_terminal

TUI = FIXTURES / "claude/2.1.218/tui"
SUBAGENT = FIXTURES / "claude/2.1.218/subagent"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


@pytest.fixture
def tui(bnd: Any) -> Any:
    bnd("record", next(TUI.glob("projects/*/*.jsonl"))).ok()
    return bnd


def shown(out: str) -> list[int]:
    """The numbers of the steps in a timeline."""
    return [int(number) for number in re.findall(r"^ *(\d+)~?  \d\d:\d\d:\d\d", out, re.MULTILINE)]


def test_branches_and_marks(tui: Any) -> None:
    out = tui("show", "@").ok().out
    assert shown(out) == list(range(1, 33))
    assert re.findall(r"^ +(\d+)~", out, re.MULTILINE) == [str(n) for n in range(14, 30)]
    assert "2 branches end at events 28, 31" in out
    assert re.search(r"^ +21~ .*\[~rewound, steering\]$", out, re.MULTILINE)
    assert re.search(r"^ +28~ .*\[~rewound, failed\]$", out, re.MULTILINE)
    env = {**tui.environment(), "TERM": "xterm", "PAGER": "less"}
    _, coloured = on_terminal(tui.argv("show", "@"), env, rows=300, columns=300)
    dim = re.compile(rb"\x1b\[(?:\d+;)*2m(?:\x1b\[[0-9;]*m)*")
    assert re.search(dim.pattern + rb" +14~", coloured)
    assert not re.search(dim.pattern + rb" +30 ", coloured)
    assert re.search(rb"\x1b\[(?:\d+;)*1m(?:\x1b\[[0-9;]*[013-9]m)* +30 ", coloured)  # what a person said is bold


def test_compaction_and_gaps_are_marked(bnd: Any) -> None:
    bnd("record", "--all", env={"CLAUDE_CONFIG_DIR": FIXTURES / "claude/2.1.332/compacted"}).ok()
    assert "[compaction]" in bnd("show", "@").ok().out
    marks = set()
    for name in ("TP-10.jsonl", "TP-11.jsonl", "TP-12.jsonl", "TP-13.jsonl", "TP-09.jsonl", "TP-14.jsonl", "TP-15.jsonl"):
        if (CASES / name).exists():
            bnd("record", CASES / name)
    for row in bnd("sql", "select run, seq, mark from events where mark is not null").json():
        out = bnd("show", row["run"]).ok().out
        assert re.search(rf"^ *{row['seq']}~?  .*\[.*{row['mark']}.*\]$", out, re.MULTILINE), row
        marks.add(row["mark"])
    assert "compaction" in marks


def test_filters(tui: Any) -> None:
    assert shown(tui("show", "@", "--kind", "user_msg").ok().out) == [1, 14, 21, 24, 30]
    assert shown(tui("show", "@", "--kind", "user_msg", "--kind", "thinking").ok().out) == [1, 2, 14, 21, 24, 30]
    assert shown(tui("show", "@", "--tool", "Bash").ok().out) == [9, 11, 18, 20, 27, 28]
    assert shown(tui("show", "@", "--tool", "Bash", "--kind", "tool_call", "--at", "-1").ok().out) == [9]
    assert shown(tui("show", "@", "--tool", "nothing").ok().out) == []
    ran = tui("show", "@", "--kind", "nothing")
    assert (ran.code, "user_msg" in ran.err) == (2, True)


def test_at(tui: Any) -> None:
    """Step 31 stands on the branch after the rewind; step 22 on the one before it."""
    assert shown(tui("show", "@", "--at", "31").ok().out) == [*range(1, 14), 30, 31]
    assert shown(tui("show", "@", "--at", "22").ok().out) == list(range(1, 23))
    assert shown(tui("show", "@", "--at", "-32").ok().out) == [1]
    assert shown(tui("show", "@", "--at=turn:1").ok().out) == list(range(1, 14))
    assert shown(tui("show", "@", "--at", "12").ok().out) == list(range(1, 13))  # both results of 7 and 9
    for at in ("0", "99", "cp:1", "i:1", "x"):
        assert tui("show", "@", "--at", at).code == 2


def test_a_subagent_stands_where_it_was_started(bnd: Any) -> None:
    bnd("record", "--all", env={"CLAUDE_CONFIG_DIR": SUBAGENT}).ok()
    out = bnd("show", "@").ok().out
    assert out.index("call Agent") < out.index("SUBTASK please\n    ") < out.index("call Bash") < out.index("result Agent")
    inside = [line for line in out.splitlines() if re.match(r" {4} +\d+  \d\d:", line) and "(" in line]
    assert len(inside) == 6
    assert len(bnd("show", "@", "--at", "4").out.splitlines()) < len(out.splitlines()) - 12
    assert "from-subagent" not in bnd("show", "@", "--at", "4").out  # the call is there, what came of it isn't
    assert "from-subagent" in bnd("show", "@", "--at", "5").out
    kinds = bnd("show", "@", "--kind", "tool_call").ok().out
    assert (kinds.count("call Agent"), kinds.count("call Bash"), kinds.count("result")) == (1, 1, 0)
    (child,) = [r for r in bnd("runs", "--json", "--subagents").json() if r["relation"] == "subagent"]
    assert len(bnd("runs", "--json").json()) == 1
    assert shown(bnd("show", child["run"]).ok().out) == [1, 2, 3, 4, 5, 6]
    assert f"subagent of {child['parent_run']}@4" in bnd("show", child["run"]).out
    # a circle of parents in somebody's journal doesn't go round for ever
    con = sqlite3.connect(bnd.journal)
    con.execute("update run set parent = (select id from run where relation = 'subagent'), relation = 'subagent', parent_seq = 1")
    con.commit()
    assert bnd("show", child["run"], timeout=20).code == 0


def test_long_contents(bnd: Any) -> None:
    text = "\n".join(f"line {n}" for n in range(100)) + "\n" + "x" * 5000
    line = {"type": "user", "uuid": "a", "parentUuid": None, "sessionId": "1" * 36, "cwd": "/w", "version": "2.1.218",
            "timestamp": "2026-01-01T00:00:00.000Z", "message": {"role": "user", "content": text}}  # fmt: skip
    file = bnd.root / "t.jsonl"
    file.write_text(json.dumps(line) + "\n")
    bnd("record", file).ok()
    short, full = bnd("show", "@").ok().out, bnd("show", "@", "--full").ok().out
    assert "\n       line 11\n" in short
    assert "\n       line 12\n" not in short
    assert "89 lines more (--full)" in short
    assert "x" * 5000 in full
    assert "--full" not in full
    assert bnd("show", "@", "--json").jsonl()[0]["content"] == text


def test_raw(tui: Any) -> None:
    raw = next(TUI.glob("projects/*/*.jsonl")).read_bytes()
    assert tui("show", "@", "--raw").ok().stdout == raw
    assert tui("show", "@", "--raw", "--generation", "0").ok().stdout == raw
    for words in (["--at", "3"], ["--kind", "usage"], ["--full"], ["--json"], ["--generation", "7"]):
        assert tui("show", "@", "--raw", *words).code == 2
    env = {**tui.environment(), "TERM": "xterm"}
    code, out = on_terminal(tui.argv("show", "@", "--raw", "-q"), env)
    assert code == 3
    assert out.count(b"\n") == 1
    code, out = on_terminal(tui.argv("show", "@", "--raw", "--force", "-q"), env)
    assert code == 0
    assert out.replace(b"\r\n", b"\n") == raw


def test_ws_08_nothing_steers_the_terminal(bnd: Any) -> None:
    bnd("record", CASES / "WS-08.jsonl", "--label", "a\x1b]0;label\x07\u202eb").ok()
    bnd("note", "@", "note \x1b[2J\u202e").ok()
    bnd("note", "@:1", "note \x9b31m\nsecond").ok()
    env = {**bnd.environment(), "TERM": "xterm", "PAGER": "cat", "NO_COLOR": "1"}
    for words in (["runs"], ["show", "@", "--full"], ["show", "@", "--json"], ["search", "a*"], ["step", "@"]):
        text = bnd(*words, stdin="n\nn\no\n/\x1b[2J\n\x1b]0;x\x07\n").ok().out
        assert not CONTROL.search(text), words
        _, out = on_terminal(bnd.argv(*words), env, b"n\nq\n" if words[0] == "step" else b"")
        assert not CONTROL.search(out.decode().replace("\r", "")), words
    assert len(bnd("runs").out.splitlines()) == 2
    ran = bnd("show", "no\x1b[2Jsuch")
    assert (ran.code, CONTROL.search(ran.err.rstrip("\n"))) == (2, None)


def test_runs(bnd: Any) -> None:
    bnd("record", "--all", env={"CLAUDE_CONFIG_DIR": FIXTURES / "claude/2.1.218/forked"}).ok()
    bnd("record", "--all", env={"KIMI_CODE_HOME": FIXTURES / "kimi/2.1.0/twoturn/kimi-code"}).ok()
    rows = bnd("runs", "--json").json()
    assert [row["ended_at"] for row in rows] == sorted((row["ended_at"] for row in rows), reverse=True)
    assert {row["cli"] for row in rows} == {"claude", "kimi"}
    assert [r["cli"] for r in bnd("runs", "--json", "--cli", "kimi").json()] == ["kimi"]
    assert [r["run"] for r in bnd("runs", "--json", "-n", "2").json()] == [r["run"] for r in rows[:2]]
    fork = next(row for row in rows if row["parent_run"])
    line = next(line for line in bnd("runs").out.splitlines() if line.startswith(fork["run"]))
    assert f"{fork['parent_run']}@{fork['parent_seq']}" in line
    project = fork["project"]
    assert {r["run"] for r in bnd("runs", "--json", "--project", project).json()} == {
        r["run"] for r in rows if r["project"] == project
    }
    assert bnd("runs", "--json", "--project", project[:-1]).json() == []
    ran = bnd("runs", "--project", "/nowhere").ok()
    assert (ran.out, "no run fits" in ran.err) == ("", True)


def test_wide_characters_keep_the_columns(bnd: Any) -> None:
    for number, name in enumerate(("\u9879\u76ee\u540d\u5b57", "plain", "cafe\u0301")):
        line = {"type": "user", "uuid": "a", "parentUuid": None, "sessionId": str(number) * 36, "cwd": f"/w/{name}",
                "version": "2.1.218", "timestamp": "2026-01-01T00:00:00.000Z",
                "message": {"role": "user", "content": "\u4f60\u597d\u4e16\u754c " * 20}}  # fmt: skip
        file = bnd.root / f"{number}.jsonl"
        file.write_text(json.dumps(line) + "\n")
        bnd("record", file).ok()

    def width(text: str) -> int:
        return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)

    lines = bnd("runs").ok().out.splitlines()
    assert len({width(line[: line.index("\u4f60")]) for line in lines[1:]}) == 1
    env = {**bnd.environment(), "TERM": "xterm", "PAGER": "cat"}
    _, out = on_terminal(bnd.argv("runs"), env, columns=80)
    fitted = out.decode().replace("\r", "").splitlines()
    assert all(width(line) <= 80 for line in fitted)
    assert all(line.endswith("\u2026") for line in fitted[1:] if line)


def test_step_on_a_terminal(tui: Any) -> None:
    env = {**tui.environment(), "TERM": "xterm", "NO_COLOR": "1"}
    (run,) = tui("runs", "--json").json()
    code, out = on_terminal(tui.argv("step", "@"), env, b"\n5\np\n-1\nf\nq\n")
    text = out.decode().replace("\r", "")
    assert code == 0
    assert "Enter or n: next" in text
    assert re.findall(r"^(?:\d+/32> )? +(\d+)  \d\d:", text, re.MULTILINE) == ["1", "2", "5", "4", "32"]
    assert "/32> " in text
    assert "fork of" in text  # which is the newest run from here on
    assert len(tui("runs", "--json").json()) == 2
    code, out = on_terminal(tui.argv("step", run["run"]), env, b"\x03", after=b"/32> ")
    assert code == 130
    assert b"Traceback" not in out


def test_notes_stand_where_they_belong(tui: Any) -> None:
    (run,) = tui("runs", "--json").json()
    assert tui("note", f"{run['run'][:6]}:2", "on step two").ok().out == f"noted on {run['run']}:2\n"
    tui("note", "@", "on the run", "-q").ok()
    lines = tui("show", "@").ok().out.splitlines()
    assert lines.index("note: on the run") < next(i for i, line in enumerate(lines) if "user" in line)
    assert lines[lines.index("       a thought") + 1] == "       note: on step two"
    assert "note: on step two" in tui("step", "@", stdin="2\n").out
    rows = tui("sql", "select run, seq, text, made_at from notes order by seq").json()
    assert [(r["seq"], r["text"]) for r in rows] == [(None, "on the run"), (2, "on step two")]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", r["made_at"]) for r in rows)
    before = tui.journal.read_bytes()
    for words in (["@:0", "x"], ["@:33", "x"], ["nothing", "x"], ["@", ""], ["@"]):
        assert tui("note", *words).code == 2
    assert tui.journal.read_bytes() == before
