-- The bytes of a namespace's blobs, kept while blobs are added. Null: to be added up again, after a blob was removed.
alter table quotas add column used_bytes bigint;
alter table quotas add column counted_at bigint; -- when they were last added up
