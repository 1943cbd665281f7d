-- Cards of repositories: for manifests without a card of their own.
create table repository_cards (
    repository text not null primary key,
    digest     text not null,                   -- of the text
    text       text not null,
    words      text not null,                   -- split for the search
    updated_at bigint not null,
    constraint repository_cards_repository foreign key (repository) references repositories (name) on delete cascade
);

-- The card with the words of the search that is not one of the model's files: the digest of an attached one, or of the
-- repository's text.
alter table search add column card text;
