-- Counts of pulls, without callers: one row for each repository and day on which it was pulled, kept for a year.
create table pull_counts (
    repository text not null,
    day        bigint not null,                 -- days since 1970, in UTC
    pulls      bigint not null,
    primary key (repository, day),
    constraint pull_counts_repository foreign key (repository) references repositories (name) on delete cascade
);
create index pull_counts_by_day on pull_counts (day);

-- Of all time.
alter table repositories add column pulls bigint not null default 0;
-- Of the last 30 days, the same at each position.
alter table search add column pulls bigint not null default 0;
