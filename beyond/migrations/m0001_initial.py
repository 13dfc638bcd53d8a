"""Format 1: the first. Frozen: `schema/journal.sql` is the documentation of the newest format, this is what was shipped."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def apply(db: Database) -> None:
    """Makes the tables of an empty journal."""
    for statement in statements(SQL):
        db.conn.execute(statement)


def statements(script: str) -> list[str]:
    """The single statements of a script: `executescript` would commit the transaction that we are in."""
    out, part = [], ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            out.append(part.strip())
            part = ""
    return out


SQL = """\
-- The journal's permanent tables and what is derived from them.
-- Column comments are the reference: `bnd sql --schema` prints them.
-- Times are Unix milliseconds (UTC). Hashes are 0x12 (sha2-256) followed by the 32 bytes of the plain content's sha256.

create table meta (
    key text primary key,           -- name of a property of this file
    value                           -- its value
) without rowid;

create table pack (
    id integer primary key,
    codec text not null,            -- how `data` is compressed: 'zstd' or 'raw'
    prefix integer,                 -- pack whose plain bytes are the raw-content dictionary of this one, or null
    size integer not null,          -- bytes when decompressed
    data blob not null              -- the compressed bytes: many blobs one after another
);

create table blob (
    id integer primary key,
    head integer not null,          -- first 8 bytes of the sha256, as a signed integer: the look-up key
    hash blob not null,             -- tagged sha256 of the plain bytes
    pack integer not null,          -- pack that holds it
    offset integer not null,        -- where it starts in the pack's plain bytes
    size integer not null           -- how many bytes it has
);
create index blob_head on blob (head);

create table run (
    id integer primary key,
    run text not null unique,       -- the run's id: 12 hex digits
    cli text not null,              -- agent CLI: claude, kimi, …
    mode text not null,             -- how it was recorded: transcript, proxy or sdk
    conversation text,              -- the agent CLI's own id of the conversation
    first_hash blob,                -- tagged sha256 of the first line: tells files apart that were never seen
    relation text,                  -- null, fork, continuation or subagent
    parent integer,                 -- run that this one comes from (run.id)
    parent_seq integer,             -- event of the parent at which it begins
    forked_at integer,              -- event of the parent that was forked at
    method text,                    -- how a fork was made: surgical or synthesis
    agent text not null default 'main', -- 'main', or the subagent's id
    label text,                     -- the user's own name for it
    title text,                     -- the CLI's title, or the first prompt
    title_rank integer,             -- 0 first prompt, 1 summary, 2 made by the CLI, 3 the user's
    project text,                   -- directory in which the conversation began
    git_branch text,                -- branch checked out when it began
    cli_version text,               -- version of the agent CLI, the newest seen
    model text,                     -- model that answered last
    command text,                   -- command line of an SDK or proxy run
    exit_status integer,            -- exit status of that command
    started_at integer,             -- time of its first record
    ended_at integer,               -- time of its newest record
    ended text not null default 'complete', -- complete, incomplete or live
    recorded_at integer not null,   -- when it was first recorded
    events integer not null default 0,      -- number of events; the next seq is one more
    first_ts integer,               -- earliest time of any line: tells a copy from its original
    extra text                      -- JSON of what the ingester notes besides
);
create index run_conversation on run (conversation);
create index run_parent on run (parent);

create table source (
    id integer primary key,
    run integer not null,           -- run whose file this is (run.id)
    generation integer not null,    -- 0, and one more each time earlier lines were rewritten
    lines integer not null default 0, -- complete lines kept
    bytes integer not null default 0, -- bytes of those lines
    tail blob,                      -- bytes after the last newline, compressed; not yet a line
    tail_line integer not null default 0, -- 1 where the tail already is a whole record
    damage text,                    -- JSON list of what could not be read: line, offset, length, what
    unique (run, generation)
);

create table file (
    path text primary key,          -- where the source was seen
    source integer not null,        -- what it holds (source.id)
    size integer not null,          -- bytes when last read
    mtime_ns integer not null,      -- modification time when last read, nanoseconds
    inode integer not null,         -- inode when last read
    gone_at integer                 -- when it was first found missing
) without rowid;
create index file_source on file (source);

create table segment (
    source integer not null,        -- source.id
    line integer not null,          -- number of its first line (1 …)
    lines integer not null,         -- how many lines, each with its newline
    offset integer not null,        -- byte of the source at which it starts
    size integer not null,          -- bytes of the source
    hash blob not null,             -- tagged sha256 of those bytes
    blob integer not null,          -- blob of the bytes without the lifted strings
    lengths blob not null,          -- varints: the length of each line, newline included
    lifted blob not null,           -- varints: (bytes since the last lifted string, blob) …
    primary key (source, line)
) without rowid;

create table event (
    run integer not null,           -- run.id
    seq integer not null,           -- number of the step: given once, never reused or changed
    source integer,                 -- source.id of the line it stands on
    line integer,                   -- that line (1 …)
    part integer not null,          -- which block of the line; -1 for its usage
    kind text not null,             -- user_msg assistant_msg thinking tool_call tool_result usage meta error io
    ts integer,                     -- time that the record carries
    tool text,                      -- name of the tool
    tool_id text,                   -- the CLI's id of the call
    model text,                     -- model that answered
    preview text,                   -- first characters of the content
    size integer,                   -- characters of the content
    path text,                      -- file that a tool call is about
    mark text,                      -- steering, compaction, gap, cycle or null
    is_error integer,               -- 1 failed, 0 not, null where it can't
    turn integer,                   -- number of the user's turn on this branch
    active integer not null,        -- 0 on a branch that was rewound away
    parent_seq integer,             -- the step before it on its branch
    result_seq integer,             -- tool_call: its result
    link blob,                      -- causal link, see `event.py`
    usage_key integer,              -- usage: hash of the API message's id
    counted integer,                -- usage: 1 where these tokens count, 0 for a copy of another run's
    input_tokens integer,           -- usage: input that did not come from the cache
    output_tokens integer,          -- usage: output
    cache_read_tokens integer,      -- usage: input read from the cache
    cache_write_tokens integer,     -- usage: input written to the cache
    primary key (run, seq)
) without rowid;
create index event_usage on event (
    usage_key, model, counted, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, kind
) where kind = 'usage';
create index event_tools on event (tool, is_error, kind) where kind = 'tool_call';

create table note (
    id integer primary key,
    run integer not null,           -- run.id
    seq integer,                    -- event that it is about, or null for the run
    text text not null,             -- the remark
    made_at integer not null        -- when
);

create table checkpoint (
    id integer primary key,
    run integer not null,           -- run.id
    seq integer not null,           -- event after which the tree was so; 0 before the first
    repository text,                -- top level of the work tree it was taken of
    tree_id text not null,          -- git tree of all its files
    head_id text,                   -- commit that HEAD was then, or null before the first commit
    commit_id text,                 -- commit that keeps the tree alive
    ref text,                       -- reference to that commit; where the tree is as before, the earlier one's
    how text not null,              -- hook, follow, after (one snapshot after the fact), or fork (what it began with)
    aligned integer not null,       -- 1 where nothing of a later step can be in it
    taken_at integer not null,      -- when
    files_changed integer,          -- files that differ from the checkpoint before it, or null for the first
    skipped text                    -- JSON list of paths that are not in it, each with why
);
create index checkpoint_run on checkpoint (run, seq);

create table fork (
    run integer primary key,        -- the fork (run.id)
    ends text not null,             -- JSON list of the parent's events whose causal past it keeps
    method text not null,           -- surgical or synthesis
    reason text,                    -- why it is not surgical, or null
    files_from integer,             -- checkpoint that its files come from (checkpoint.id)
    worktree text,                  -- directory that it runs in
    launch text not null,           -- JSON: argv, cwd, env and unset of the command that resumes it
    notes text,                     -- JSON list of what a person should know
    made_at integer not null        -- when
);

create table proof (
    id integer primary key,
    cli text not null,              -- agent CLI
    version text not null,          -- its version
    passed integer not null,        -- 1 where no canary leaked and nothing was missing
    certificate text not null,      -- JSON: what was planted, cut, searched and found
    made_at integer not null        -- when
);

create table stale_ref (
    ref text not null,              -- reference that a forgotten checkpoint left behind
    repository text not null,       -- where; `gc` deletes it there
    primary key (repository, ref)
) without rowid;

create table forgotten (
    hash blob primary key,          -- sha256 of agent CLI, conversation and first line: no text of it is left
    forgotten_at integer not null   -- when
) without rowid;

create table recorder (
    run integer primary key,        -- run that is being followed (run.id)
    pid integer not null,           -- process that follows it
    since integer not null          -- when it began
);

-- What was recorded stays. Only `forget` and `gc` delete, and say so in `meta` for the length of their transaction.
create trigger event_identity before update of run, seq, source, line, part, kind on event
begin select raise(abort, 'the identity of an event does not change'); end;
create trigger event_stays before delete on event
when not exists (select 1 from meta where key = 'deleting')
begin select raise(abort, 'only forget deletes events'); end;
create trigger segment_once before insert on segment
when exists (select 1 from segment where source = new.source and line = new.line)
begin select raise(abort, 'a line is recorded once'); end;
create trigger segment_bytes before update of source, line, lines, offset, size, hash, lengths on segment
begin select raise(abort, 'recorded lines do not change'); end;
create trigger segment_stays before delete on segment
when not exists (select 1 from meta where key = 'deleting')
begin select raise(abort, 'only forget deletes lines'); end;
create trigger blob_content before update of hash, size on blob
begin select raise(abort, 'a blob does not change'); end;
create trigger blob_stays before delete on blob
when not exists (select 1 from meta where key = 'deleting')
begin select raise(abort, 'only forget and gc delete blobs'); end;
create trigger pack_content before update on pack
begin select raise(abort, 'a pack does not change'); end;
create trigger pack_stays before delete on pack
when not exists (select 1 from meta where key = 'deleting')
begin select raise(abort, 'only forget and gc delete packs'); end;
create trigger run_identity before update of run, cli, mode, agent on run
begin select raise(abort, 'the identity of a run does not change'); end;
create trigger run_first_line before update of first_hash on run
when old.first_hash is not null
begin select raise(abort, 'the identity of a run does not change'); end;
create trigger run_once before insert on run
when exists (select 1 from run where id = new.id or run = new.run)
begin select raise(abort, 'a run is recorded once'); end;
create trigger run_stays before delete on run
when not exists (select 1 from meta where key = 'deleting')
begin select raise(abort, 'only forget deletes runs'); end;
create trigger source_stays before delete on source
when not exists (select 1 from meta where key = 'deleting')
begin select raise(abort, 'only forget deletes sources'); end;
create trigger note_text before update on note
begin select raise(abort, 'a note does not change'); end;
create trigger checkpoint_content before update on checkpoint
begin select raise(abort, 'a checkpoint does not change'); end;
create trigger checkpoint_stays before delete on checkpoint
when not exists (select 1 from meta where key = 'deleting')
begin select raise(abort, 'only forget deletes checkpoints'); end;
create trigger fork_stays before delete on fork
when not exists (select 1 from meta where key = 'deleting')
begin select raise(abort, 'only forget deletes forks'); end;
create trigger proof_content before update on proof
begin select raise(abort, 'a certificate does not change'); end;
create trigger note_stays before delete on note
when not exists (select 1 from meta where key = 'deleting')
begin select raise(abort, 'only forget deletes notes'); end;
"""
