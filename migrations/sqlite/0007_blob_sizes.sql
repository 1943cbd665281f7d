-- Whoever is about to send bytes whose digest is not known yet asks whether anything of their size is there.
create index blobs_by_size on blobs (size_bytes);
