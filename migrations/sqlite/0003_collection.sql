-- Collection over many replicas: what is on its way out by where its bytes lie, why things went, and how long they can come back.

-- A push that meets content on its way out writes its bytes under a key of their own, so one digest may have several keys to delete.
alter table tombstones rename to tombstones_by_digest;
create table tombstones (
    store_key  text not null primary key,
    digest     text not null,
    size_bytes bigint not null,
    reason     text not null,
    created_at bigint not null
);
insert into tombstones (store_key, digest, size_bytes, reason, created_at)
    select store_key, digest, size_bytes, reason, created_at from tombstones_by_digest;
drop table tombstones_by_digest;

create index blobs_by_key on blobs (store_key);

-- Since when, at the earliest, no tag names a manifest: its last push, or the last tag that left it.
alter table manifests add column untagged_at bigint;

-- What was removed, and why.
create table removals (
    id          text not null primary key,      -- in the order of time
    kind        text not null,
    repository  text,                           -- of a blob: null if no repository linked it any more
    tag         text,
    digest      text not null,
    media_type  text,
    size_bytes  bigint,
    reason      text not null,
    rule        bigint,                         -- which retention rule, from 1
    removed_at  bigint not null,
    undo_until  bigint not null,
    restored_at bigint,
    constraint removals_kind check (kind in ('tag', 'manifest', 'blob'))
);
create index removals_by_age on removals (removed_at);
create index removals_by_digest on removals (repository, digest);

-- Blobs that a removed manifest needs to come back.
create table removal_blobs (
    digest     text not null,
    removal    text not null,
    undo_until bigint not null,
    primary key (digest, removal),
    constraint removal_blobs_removal foreign key (removal) references removals (id) on delete cascade
);
create index removal_blobs_by_removal on removal_blobs (removal);
create index removal_blobs_by_age on removal_blobs (undo_until);
