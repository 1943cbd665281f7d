-- What a manifest says about itself, for people who look for models: JSON, and the parts that queries use. Null: read
-- by a version that did not record it, and queued again.
alter table models add column facts text;
alter table models add column license text;
alter table models add column task text;
alter table models add column context_length bigint;
-- Lower-case words that a search looks through.
alter table models add column words text;
-- The names of its origins as they may be stored here, each between line ends.
alter table models add column bases text;
