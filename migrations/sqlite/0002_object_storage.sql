-- Bytes in object storage: an attempt to commit an upload may leave an object, and no two attempts leave the same.
alter table uploads add column attempts bigint not null default 0; -- how often somebody set out to commit it
