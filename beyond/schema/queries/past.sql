-- The causal past of one event (:run, :seq): its branch through parent_seq; where a step followed parallel calls, all
-- their results that are not later than the cut; and what hangs on those steps without being linked (usage, errors).
with recursive
past (seq) as (
    select :seq
    union
    select e.parent_seq from past p join event e on e.run = :run and e.seq = p.seq where e.parent_seq is not null
    union
    -- the calls of the same answer stand before the step that follows them
    select c.result_seq
    from past p
    join event e on e.run = :run and e.seq = p.seq and e.kind = 'tool_call'
    join event c on c.run = :run and c.seq = e.seq and c.result_seq is not null
    where c.result_seq <= :seq
        and exists (select 1 from past q join event f on f.run = :run and f.seq = q.seq
                    where f.parent_seq is not null)
)
select seq from past
