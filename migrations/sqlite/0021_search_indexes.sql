-- Superseded by indexes with more columns, and by indexes of names in lower case, which the server builds when it starts.
drop index search_by_update;
drop index search_by_format;
drop index search_by_quantization;
drop index search_by_architecture;
