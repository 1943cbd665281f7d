-- Superseded by an index with more columns, which the server builds when it starts.
drop index search_by_id;
