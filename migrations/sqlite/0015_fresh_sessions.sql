-- When the person of a session has last proved who it is, with a password or at the provider; 0 if that is not known.
alter table sessions add column fresh_at bigint not null default 0;
