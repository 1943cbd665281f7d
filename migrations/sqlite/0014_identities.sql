-- How accounts sign in without a secret of this server: people at an OpenID Connect provider, and robots as a job
-- of a CI service.

create table identities (
    issuer     text not null,
    subject    text not null,
    account    text not null,
    provider   text not null,                   -- its name in the settings
    created_at bigint not null,
    used_at    bigint not null,
    primary key (issuer, subject),
    constraint identities_account foreign key (account) references accounts (id) on delete cascade
);
create index identities_by_account on identities (account);

create table publishers (
    id         text not null primary key,
    account    text not null,                   -- the robot
    kind       text not null,
    issuer     text not null,
    conditions text not null,                   -- JSON: claims and the values that they have to have
    pins       text not null,                   -- JSON: claims with the values of the first use
    created_at bigint not null,
    used_at    bigint,
    claims     text,                            -- JSON: of the last use
    constraint publishers_kind check (kind in ('github', 'gitlab', 'oidc')),
    constraint publishers_account foreign key (account) references accounts (id) on delete cascade
);
create index publishers_by_account on publishers (account, id);
create index publishers_by_issuer on publishers (issuer, id);

-- Of groups whose members a provider decides: the provider's name, and its name for the group.
alter table groups add column provider text;
alter table groups add column claim text;
-- Where a session was signed in.
alter table sessions add column provider text;
-- The publisher that has created a token.
alter table access_tokens add column publisher text;
