-- Which words of the repository are in `search_words`. 0: written by a version that did not add the names of its origins; a job
-- adds them.
alter table search add column word_form bigint not null default 0;

-- The origins are looked up among the words instead.
drop index if exists search_by_manifest;
