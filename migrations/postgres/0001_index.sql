-- The index: what is stored, where it lies, and who may reach it through which repository.
-- Times are milliseconds since 1970. The SQLite tree has the same numbers, names and columns.

-- SQLite's json_each for a list of texts, so that one query text serves both engines.
create function json_each(items text) returns table (value text)
    language sql immutable strict as $$ select json_array_elements_text(items::json) $$;

-- One row per piece of content, whatever it is: layers, configs and manifests alike.
create table blobs (
    digest      text not null primary key,
    size_bytes  bigint not null,
    store_key   text not null,                  -- where the bytes lie
    state       text not null default 'live',
    created_at  bigint not null,
    released_at bigint not null,                -- when a repository last let go of it
    unlinked_at bigint,                         -- since when no repository links it
    constraint blobs_size check (size_bytes >= 0),
    constraint blobs_state check (state in ('live', 'deleting'))
);
create index blobs_unlinked on blobs (unlinked_at) where unlinked_at is not null;

create table repositories (
    name       text collate "C" not null primary key,
    created_at bigint not null
);

-- What makes a blob visible in a repository.
create table links (
    repository      text not null,
    digest          text not null,
    leased_until    bigint not null,
    unreferenced_at bigint,                     -- since when no manifest of the repository names it
    primary key (repository, digest),
    constraint links_repository foreign key (repository) references repositories (name),
    constraint links_digest foreign key (digest) references blobs (digest)
);
create index links_by_digest on links (digest);
create index links_unreferenced on links (unreferenced_at) where unreferenced_at is not null;

-- Manifests of a repository, with the index's copy of their bytes.
create table manifests (
    repository      text not null,
    digest          text not null,
    media_type      text not null,
    artifact_type   text,
    bytes           bytea not null,
    created_at      bigint not null,
    unreferenced_at bigint,                     -- since when nothing that named it does: a deleted tag, a deleted index
    primary key (repository, digest),
    constraint manifests_link foreign key (repository, digest) references links (repository, digest)
);
create index manifests_by_digest on manifests (digest);
create index manifests_unreferenced on manifests (unreferenced_at) where unreferenced_at is not null;

-- What a manifest names: blobs (config, layers) and children (the manifests of an index).
create table manifest_blobs (
    repository text not null,
    manifest   text not null,
    digest     text not null,
    kind       text not null,
    required   bigint not null,                 -- 0: may be absent (urls, sparse, deleted children)
    primary key (repository, manifest, digest, kind),
    constraint manifest_blobs_manifest foreign key (repository, manifest)
        references manifests (repository, digest) on delete cascade,
    constraint manifest_blobs_kind check (kind in ('blob', 'child'))
);
create index manifest_blobs_by_digest on manifest_blobs (repository, digest);

create table tags (
    repository text not null,
    name       text collate "C" not null,
    digest     text not null,
    updated_at bigint not null,
    primary key (repository, name),
    constraint tags_manifest foreign key (repository, digest) references manifests (repository, digest)
);
create index tags_by_digest on tags (repository, digest);

-- Manifests with a subject, ready for the listing of the subject's referrers.
create table referrers (
    repository    text not null,
    subject       text not null,
    digest        text not null,
    media_type    text not null,
    size_bytes    bigint not null,
    artifact_type text,
    annotations   text,                         -- JSON object
    primary key (repository, subject, digest),
    constraint referrers_manifest foreign key (repository, digest)
        references manifests (repository, digest) on delete cascade
);
create index referrers_by_digest on referrers (repository, digest);

-- Content whose bytes are on their way out, and why. A row outlives its bytes, never the other way round.
create table tombstones (
    digest     text not null primary key,
    size_bytes bigint not null,
    store_key  text not null,
    reason     text not null,
    created_at bigint not null
);

-- Uploads under way. A row never names a byte that is not durable.
create table uploads (
    id           text not null primary key,
    repository   text not null,
    store_key    text not null,
    next_byte    bigint not null,               -- the offset: every byte before it is durable
    generation   bigint not null,               -- goes up with each writer; only the newest may save
    algorithm    text not null,                 -- what hash_state hashes with
    hash_state   bytea not null,                 -- carries its own version
    multipart_id text,
    parts        text,                          -- JSON array
    created_at   bigint not null,
    updated_at   bigint not null,
    constraint uploads_next_byte check (next_byte >= 0)
);
create index uploads_by_age on uploads (updated_at);

-- Workers that registered, seen at their last heartbeat.
create table workers (
    id            text not null primary key,
    secret        text not null,
    advertise     text not null,
    version       text not null,
    devices       text not null,                -- JSON arrays
    loaded        text not null,
    cached        text not null,
    registered_at bigint not null,
    seen_at       bigint not null
);

-- What a manifest is as a model; rows follow from the content alone, so they are keyed by the manifest's digest.
create table models (
    digest       text not null primary key,
    format       text not null,
    architecture text,
    parameters   bigint,
    quantization text,
    size_bytes   bigint not null,
    tensor_count bigint not null,
    problem      text,                          -- why it could not be read further
    indexed_at   bigint not null
);

create table tensors (
    digest   text not null,
    position bigint not null,
    name     text not null,
    blob     text not null,
    detail   text not null,                     -- JSON object
    primary key (digest, position),
    constraint tensors_model foreign key (digest) references models (digest) on delete cascade
);
create index tensors_by_name on tensors (digest, name);

-- Keys that every replica shares, made by whichever needed one first.
create table server_keys (
    name       text not null primary key,
    value      bytea not null,
    created_at bigint not null
);
