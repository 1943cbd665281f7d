-- Names of the models that the worker serves only, a JSON array; empty: all models.
alter table workers add column reserved_for text not null default '[]';
