-- The events of a run up to the end of a cut, each with whether it is kept. :run is run.id, :past a JSON list of the
-- seqs of the causal past, :others a JSON list of runs (subagents written into the same file) kept up to :until.
select e.run, e.seq, s.generation, e.line, e.part, e.kind, e.ts, e.tool, e.tool_id, e.is_error, e.mark, e.path, e.turn,
       case when e.run = :run then e.seq in (select value from json_each(:past))
            else coalesce(e.ts <= :until, 0) end as kept,
       e.result_seq, e.source
from event e
join source s on s.id = e.source
where e.run = :run or e.run in (select value from json_each(:others))
order by e.run, e.seq
