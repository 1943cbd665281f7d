-- The history of tags: each move and each deletion, the newest ones of each repository.
create table tag_moves (
    repository text not null,
    position   bigint not null,                 -- in the order of the moves of the repository
    tag        text not null,
    moved_at   bigint not null,
    actor      text not null,                   -- as in `audit`
    old_digest text,                            -- null: the tag did not exist
    new_digest text,                            -- null: the tag was deleted
    primary key (repository, position),
    constraint tag_moves_repository foreign key (repository) references repositories (name) on delete cascade
);
