-- Superseded by an index with more columns and by indexes of values in lower case, which the server builds when it starts.
drop index search_by_id;
drop index search_by_license;
drop index search_by_task;
