-- Uploads by Xet. A xorb is a blob that its uploader may name in shards; the row is deleted with the blob's link, when
-- its lease has ended. `account` is empty on a server without accounts.
create table xorbs (
    repository text not null,
    account    text not null,
    hash       text not null,
    digest     text not null,
    chunks     blob not null,                   -- where each chunk ends, in the blob and uncompressed
    primary key (repository, account, hash),
    constraint xorbs_link foreign key (repository, digest) references links (repository, digest) on delete cascade
);
create index xorbs_by_link on xorbs (repository, digest);

-- Clients remember what they have uploaded to a Xet server by its URL. The id is a part of the URL, and changes before
-- the xorbs may be gone.
create table xet_spaces (
    repository text not null,
    account    text not null,
    id         text not null,
    created_at bigint not null,
    primary key (repository, account),
    constraint xet_spaces_repository foreign key (repository) references repositories (name) on delete cascade
);
