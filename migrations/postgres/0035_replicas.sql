-- The servers that share this database, as they last reported.
create table replicas (
    id         text not null primary key,       -- of the process
    address    text not null,                   -- host name and port
    version    text not null,
    state      text not null,                   -- ready, not ready, stopping
    started_at bigint not null,
    seen_at    bigint not null                  -- by the database's clock
);
