-- Long work, such as a collection or a check: one row each, run by the replica that holds its lease.
create table jobs (
    id          text not null primary key,      -- in the order of time
    kind        text not null,
    parameters  text not null,                  -- JSON object
    writes      bigint not null,                -- 1: not for a replica that only reads
    state       text not null,
    created_at  bigint not null,
    started_at  bigint,
    finished_at bigint,
    holder      text,                           -- the process that runs it
    lease_until bigint,                         -- by the database's clock; after it any replica takes the job over
    attempts    bigint not null default 0,
    cancelled   bigint not null default 0,      -- 1: a caller asked for it to end
    progress    text,                           -- JSON object
    result      text,                           -- JSON object
    problem     text,
    constraint jobs_state check (state in ('queued', 'running', 'succeeded', 'failed', 'cancelled'))
);
create index jobs_unfinished on jobs (id) where finished_at is null;
create index jobs_finished on jobs (finished_at) where finished_at is not null;

-- What a job found, a row each, so that no report has to fit in memory. Rows of an earlier attempt do not count.
create table job_findings (
    job      text not null,
    attempt  bigint not null,
    kind     text not null,
    position bigint not null,
    detail   text not null,                     -- JSON
    primary key (job, attempt, kind, position),
    constraint job_findings_job foreign key (job) references jobs (id) on delete cascade
);
