-- What is fetched from other registries: who is at it, and when a tag was last compared with its upstream.
create table mirror_checks (
    repository text not null,
    reference  text not null,                   -- a tag or a digest
    checked_at bigint not null,                 -- 0: not yet
    holder     text,                            -- the fetch that others wait for
    held_until bigint not null,
    primary key (repository, reference)
);
