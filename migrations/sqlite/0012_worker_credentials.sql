-- The digest of the credential with which the worker sends heartbeats; null for a worker that a previous version registered.
alter table workers add column credential text;
