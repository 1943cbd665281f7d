-- Goes up when a worker's devices or models change, so that replicas read again only the rows of those that did.
alter table workers add column inventory bigint not null default 0;
