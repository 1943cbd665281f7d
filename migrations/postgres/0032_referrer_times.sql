-- When a referrer was pushed, so that the last card of a manifest is found. 0: before this column.
alter table referrers add column created_at bigint not null default 0;
