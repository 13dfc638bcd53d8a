-- The causal past of some events of a run, themselves included.
--   :run  run.id
--   :ends JSON list of seqs
--   :cut  nothing later than this seq is taken
-- The causes of a step are the step before it on its branch, or, after tool calls, the results of all calls of the
-- same answer. What hangs on these steps without being a cause (usage, errors, unknown records) comes along.
with recursive
answer (seq, parent) as materialized ( -- steps that go on an answer of the model: where calls made together stand
    select e.seq, e.parent_seq
    from event e join event p on p.run = e.run and p.seq = e.parent_seq
    where e.run = :run and e.seq <= :cut
        and e.kind in ('tool_call', 'assistant_msg', 'thinking')
        and p.kind in ('tool_call', 'assistant_msg', 'thinking')
),
walk (seq, way) as ( -- way: 'cause' of the ends, or 'search' for the calls that were made together with one
    select value, 'cause' from json_each(:ends)
    union
    select e.parent_seq, 'cause'
    from walk w join event e on e.run = :run and e.seq = w.seq
    where w.way = 'cause' and e.parent_seq is not null
    union
    select c.seq, 'search' -- the call behind the result that a step follows
    from walk w
    join event e on e.run = :run and e.seq = w.seq and e.kind <> 'tool_result'
    join event r on r.run = :run and r.seq = e.parent_seq and r.kind = 'tool_result'
    join event c on c.run = :run and c.seq = r.parent_seq and c.kind = 'tool_call'
    where w.way = 'cause'
    union
    select a.parent, 'search' from walk w cross join answer a on a.seq = w.seq where w.way = 'search'
    union
    select a.seq, 'search' from walk w cross join answer a on a.parent = w.seq where w.way = 'search'
    union
    select c.result_seq, 'cause'
    from walk w join event c on c.run = :run and c.seq = w.seq
    where w.way = 'search' and c.kind = 'tool_call' and c.result_seq <= :cut
),
past (seq) as materialized (
    select e.seq from walk w join event e on e.run = :run and e.seq = w.seq where w.way = 'cause'
)
select seq from past
union
select e.seq
from event e
where e.run = :run and e.seq <= :cut and e.link is null and e.parent_seq in (select seq from past)
order by 1
