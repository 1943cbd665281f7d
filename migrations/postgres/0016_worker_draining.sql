-- 1: the worker gets no new requests.
alter table workers add column draining bigint not null default 0;
