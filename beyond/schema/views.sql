-- The views that `bnd sql` offers. They are temporary: made on connect, so that content reads as text.
-- Names and order of columns are public and stable; new ones are only added at the end.
-- One column a line; its comment is the reference.

create temp view runs as -- one recorded conversation, subagent, proxy or SDK recording a row
select
    r.run as run, -- id: 12 hex digits
    r.cli as cli, -- agent CLI: claude, kimi, …
    r.cli_version as cli_version, -- version of the agent CLI, the newest seen
    r.mode as mode, -- transcript, proxy or sdk
    r.relation as relation, -- null, fork, continuation or subagent
    (select p.run from run p where p.id = r.parent) as parent_run, -- run that it comes from
    r.parent_seq as parent_seq, -- event of that run at which it begins
    r.forked_at as forked_at, -- event of the parent that was forked at
    r.method as method, -- how a fork was made: surgical, synthesis, or native (by the agent CLI itself)
    r.conversation as conversation, -- the agent CLI's own id
    r.title as title, -- the CLI's title, or the first prompt
    r.label as label, -- the user's own name for it
    r.project as project, -- directory in which it began
    r.git_branch as git_branch, -- branch checked out when it began
    r.model as model, -- model that answered last
    r.command as command, -- command line of an SDK or proxy run
    r.exit_status as exit_status, -- exit status of that command
    bnd_time(r.started_at) as started_at, -- first record, UTC
    bnd_time(r.ended_at) as ended_at, -- newest record, UTC
    r.ended as ended, -- complete, incomplete (a call without its result) or live
    r.events as events, -- number of events; also the last seq
    u.input_tokens as input_tokens, -- input not from the cache, own messages only
    u.output_tokens as output_tokens, -- output, own messages only
    u.cache_read_tokens as cache_read_tokens, -- input from the cache
    u.cache_write_tokens as cache_write_tokens, -- input written to the cache
    null as cost, -- US dollars; unknown until there is a price table
    r.agent as agent, -- 'main', or the subagent's id
    (select min(f.gone_at) is not null and count(*) = count(f.gone_at) from source s join file f on f.source = s.id where s.run = r.id) as source_gone, -- 1 when no file of it is left
    bnd_time(r.recorded_at) as recorded_at -- when it was first recorded, UTC
from run r left join (
    select run, sum(input_tokens) as input_tokens, sum(output_tokens) as output_tokens,
        sum(cache_read_tokens) as cache_read_tokens, sum(cache_write_tokens) as cache_write_tokens
    from event where kind = 'usage' group by +run
) u on u.run = r.id;

create temp view events as -- one canonical step a row
select
    r.run as run, -- run that it belongs to
    e.seq as seq, -- number of the step, given once
    bnd_time(e.ts) as ts, -- time that its record carries, UTC
    e.kind as kind, -- user_msg assistant_msg thinking tool_call tool_result usage meta error io
    r.agent as agent, -- 'main', or the subagent's id
    case when e.size <= 32 then e.preview else bnd_content(e.source, e.line, e.part) end as content, -- text, or JSON where it is no text
    e.tool as tool, -- name of the tool (call and result)
    e.tool_id as tool_id, -- the CLI's id of the call
    e.model as model, -- model that answered
    case when e.kind = 'usage' then bnd_usage(e.source, e.line) end as usage, -- the API's own usage object, JSON
    e.input_tokens as input_tokens, -- on usage events: input not from the cache; null on a copy of another run's message
    e.output_tokens as output_tokens, -- on usage events: output
    e.cache_read_tokens as cache_read_tokens, -- on usage events: input from the cache
    e.cache_write_tokens as cache_write_tokens, -- on usage events: input written to the cache
    e.is_error as is_error, -- 1 failed, 0 not, null where it can't be said
    e.turn as turn, -- number of the user's turn on this branch
    e.parent_seq as parent_seq, -- the step before it on its branch
    e.active as active, -- 0 on branches that were rewound away
    e.line as source_line, -- line of the source (1 …)
    lower(hex(e.link)) as link, -- causal link
    e.mark as mark -- steering (a prompt taken from the queue while the model worked), compaction, or null
from event e left join run r on r.id = e.run;

create temp view tool_calls as -- one tool call a row, with its result
select
    r.run as run, -- run that it belongs to
    e.seq as seq, -- event of the call
    e.tool as tool, -- name of the tool
    e.tool_id as tool_id, -- the CLI's id of the call
    case when e.size <= 32 then e.preview else bnd_content(e.source, e.line, e.part) end as input, -- JSON
    (select case when x.size <= 32 then x.preview else bnd_content(x.source, x.line, x.part) end from event x where x.run = e.run and x.seq = e.result_seq) as result, -- text, null while there is none
    e.is_error as is_error, -- 1 failed, 0 not, null without a result
    e.result_seq as result_seq, -- event of the result
    bnd_time(e.ts) as started_at, -- when the call was written, UTC
    (select x.ts from event x where x.run = e.run and x.seq = e.result_seq) - e.ts as duration_ms, -- from the call's record to the result's
    e.path as path, -- file that the call is about
    e.active as active -- 0 on branches that were rewound away
from event e left join run r on r.id = e.run
where e.kind = 'tool_call';

create temp view interchanges as -- one HTTP request and its response a row (none before the proxy records)
select
    null as run, -- run that it belongs to
    null as i, -- number by arrival (1 …)
    null as seq, -- first event derived from it
    null as arrival, -- order in which requests arrived
    null as provider, -- anthropic, openai, …
    null as method, -- HTTP method
    null as path, -- path of the request
    null as status, -- status of the response
    null as request, -- body of the request
    null as response, -- body of the response
    null as streamed, -- 1 for server-sent events
    null as frames, -- number of frames
    null as model, -- model asked for
    null as input_tokens, -- input not from the cache
    null as output_tokens, -- output
    null as started_at, -- when the request arrived, UTC
    null as first_byte_ms, -- until the first byte of the response
    null as duration_ms, -- until its end
    null as ended -- how it ended
where 0;

create temp view io as -- one recorded value of an SDK agent a row (none before the SDK records)
select
    null as run, -- run that it belongs to
    null as i, -- number by arrival (1 …)
    null as seq, -- its event
    null as name, -- name given to it
    null as args, -- arguments, JSON
    null as value, -- value, JSON
    null as is_error, -- 1 where the call raised
    null as duration_ms -- how long it took
where 0;

create temp view checkpoints as -- one git tree of the working copy a row
select
    r.run as run, -- run that it belongs to
    c.seq as seq, -- event after which the tree was so; 0 before the first
    c.ref as ref, -- git ref that keeps it; where the tree is as before, the earlier one's
    c.commit_id as commit_id, -- git commit
    c.tree_id as tree_id, -- git tree
    c.head_id as head_id, -- HEAD of that moment
    c.aligned as aligned, -- 1 where nothing of a later step can be in it
    bnd_time(c.taken_at) as taken_at, -- when, UTC
    c.files_changed as files_changed, -- files that differ from the checkpoint before; null for the first
    c.how as how, -- hook, follow, after (one snapshot after the fact), or fork (what it began with)
    c.skipped as skipped, -- JSON list of what is not in it, each with why
    c.repository as repository, -- top level of the work tree
    row_number() over (partition by c.run order by c.id) as number -- cp:NUMBER
from checkpoint c join run r on r.id = c.run;

create temp view forks as -- one fork a row
select
    r.run as run, -- the fork
    (select p.run from run p where p.id = r.parent) as parent_run, -- run that was forked
    r.forked_at as forked_at, -- event that it was forked at
    f.method as method, -- surgical or synthesis
    f.reason as reason, -- why it is not surgical
    f.worktree as worktree, -- directory that it runs in
    f.launch as launch, -- JSON: argv, cwd, env and unset of the command that resumes it
    f.notes as notes, -- JSON list of what a person should know
    bnd_time(f.made_at) as made_at -- when, UTC
from fork f join run r on r.id = f.run;

create temp view sources as -- one file that a run was read from a row
select
    r.run as run, -- run that it feeds
    f.path as path, -- where it was seen
    s.generation as generation, -- 0, and one more each time earlier lines were rewritten
    s.bytes as bytes, -- bytes of the complete lines that are kept
    s.lines as lines, -- how many
    s.damage as damage, -- JSON list of what could not be read, null where all was
    bnd_time(f.gone_at) as gone_since -- when it was first found missing, UTC
from source s left join run r on r.id = s.run left join file f on f.source = s.id;

create temp view usage_by_day as -- tokens by UTC day
select
    strftime('%Y-%m-%d', e.ts / 1000, 'unixepoch') as day, -- UTC day, null where the record has no time
    r.project as project, -- directory of the run
    r.cli as cli, -- agent CLI
    e.model as model, -- model that answered
    count(distinct e.run) as runs, -- runs with a message on that day
    sum(e.input_tokens) as input_tokens, -- input not from the cache
    sum(e.output_tokens) as output_tokens, -- output
    sum(e.cache_read_tokens) as cache_read_tokens, -- input from the cache
    sum(e.cache_write_tokens) as cache_write_tokens, -- input written to the cache
    null as cost -- US dollars; unknown until there is a price table
from event e left join run r on r.id = e.run
where e.kind = 'usage' and e.counted = 1
group by 1, 2, 3, 4;

create temp view usage_by_day_local as -- tokens by day where the command runs (the TZ variable, else the system's zone)
select
    strftime('%Y-%m-%d', e.ts / 1000, 'unixepoch', 'localtime') as day, -- local day
    r.project as project, -- directory of the run
    r.cli as cli, -- agent CLI
    e.model as model, -- model that answered
    count(distinct e.run) as runs, -- runs with a message on that day
    sum(e.input_tokens) as input_tokens, -- input not from the cache
    sum(e.output_tokens) as output_tokens, -- output
    sum(e.cache_read_tokens) as cache_read_tokens, -- input from the cache
    sum(e.cache_write_tokens) as cache_write_tokens, -- input written to the cache
    null as cost, -- US dollars; unknown until there is a price table
    bnd_zone() as zone -- the zone that `day` is in
from event e left join run r on r.id = e.run
where e.kind = 'usage' and e.counted = 1
group by 1, 2, 3, 4;

create temp view notes as -- one remark a row
select
    r.run as run, -- run that it is about
    n.seq as seq, -- event that it is about, null for the run
    n.text as text, -- the remark
    bnd_time(n.made_at) as made_at -- when it was made, UTC
from note n left join run r on r.id = n.run;
