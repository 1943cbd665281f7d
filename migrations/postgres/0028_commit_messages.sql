-- What the client said of a commit that moved the tag: a title, and a description after an empty line.
alter table tag_moves add column message text;
