-- The search. Its rows follow from tags and models and can be rebuilt from them at any time; a job does so after an upgrade.

-- Words of the model card, for the search. Null: read by a version that did not record them, and queued again.
alter table models add column card_words text;

-- One row for each kind of model (format and quantisation) in a repository, of the tag that represents the kind: `latest`,
-- else the one that was moved last. Position 0 represents the repository.
create table search (
    repository     text collate "C" not null,
    position       bigint not null,
    id             bigint not null,             -- of the repository's words, the same at each position
    tag            text not null,
    digest         text not null,
    updated_at     bigint not null,             -- when the tag was moved
    newest_at      bigint not null,             -- when a tag of the repository was moved last
    created_at     bigint not null,             -- when the repository was created
    indexed_at     bigint not null,             -- when the manifest was read as a model; 0: not yet
    format         text,                        -- null: not read yet; empty: not a model
    architecture   text,
    quantization   text,
    license        text,
    task           text,
    parameters     bigint not null,             -- -1 here and below: unknown
    size_bytes     bigint not null,
    context_length bigint not null,
    bases          text,
    primary key (repository, position)
);
create index search_by_id on search (id, position);
create index search_by_update on search (updated_at desc, repository);
create index search_by_newest on search (newest_at desc, repository) where position = 0;
create index search_by_creation on search (created_at desc, repository) where position = 0;
create index search_by_parameters on search (parameters desc, repository);
create index search_by_size on search (size_bytes desc, repository);
create index search_by_format on search (format, updated_at desc, repository);
create index search_by_quantization on search (quantization, updated_at desc, repository);
create index search_by_architecture on search (architecture, updated_at desc, repository);
create index search_by_license on search (license, updated_at desc, repository);
create index search_by_task on search (task, updated_at desc, repository);

-- The words of a repository: its name, the facts of its models and its card. Words are split and folded by the server,
-- so both engines find the same.
create table search_words (
    id    bigint not null primary key,
    words tsvector not null
);
create index search_words_by_word on search_words using gin (words) with (fastupdate = off);
create sequence search_words_ids;
