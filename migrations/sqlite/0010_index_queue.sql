-- Manifests that wait to be read as models. A push adds its manifest in its own transaction, so no crash loses one.
create table index_queue (
    digest     text not null primary key,
    repository text not null,                   -- where it was pushed last
    queued_at  bigint not null,
    next_at    bigint,                          -- when it is due, by the database's clock; a claim moves it ahead; null: no further attempt
    attempts   bigint not null default 0,       -- with the one in progress
    problem    text                             -- why the last attempt failed
);
create index index_queue_due on index_queue (next_at, queued_at) where next_at is not null;

insert into index_queue (digest, repository, queued_at, next_at)
    select m.digest, min(m.repository), 0, 0 from manifests m
    where not exists (select 1 from models where models.digest = m.digest)
    group by m.digest;
