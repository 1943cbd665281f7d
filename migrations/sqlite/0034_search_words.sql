-- The beginnings of words with up to eight letters are listed, so that a search reads no more of a list than it needs. The rows
-- of the search are removed with it, and a job rebuilds them.
drop table search_words;
create virtual table search_words using fts5(words, content='', contentless_delete=1, detail=none, prefix='1 2 3 4 5 6 7 8', tokenize='ascii');
delete from search;
delete from search_tags;

-- Superseded by an index with more columns and by indexes of values in lower case, which the server builds when it starts.
drop index search_by_id;
drop index search_by_license;
drop index search_by_task;
