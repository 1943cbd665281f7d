-- The tags of a model, by which clients of Hugging Face's API filter: in lower case, one in a line. Null: read by a version that
-- did not record them, and queued again.
alter table models add column tags text;
drop index if exists models_without_card_words;

-- The tags of the model that represents each repository in the search.
create table search_tags (
    tag        text collate "C" not null,
    repository text collate "C" not null,
    primary key (tag, repository)
);
create index search_tags_by_repository on search_tags (repository);
