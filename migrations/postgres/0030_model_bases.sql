-- The names of the repositories that models name as their origins, for the list of the models that were made from one.
create table model_bases (
    base   text not null,                       -- without a tag
    digest text not null,
    primary key (base, digest),
    constraint model_bases_model foreign key (digest) references models (digest) on delete cascade
);
create index model_bases_by_model on model_bases (digest);

-- Whether the origins of a model are in that table. 0: written by an earlier version; a job adds them.
alter table models add column bases_listed bigint not null default 0;
