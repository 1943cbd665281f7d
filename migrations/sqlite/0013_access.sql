-- Who may do what: accounts, groups, tokens, grants and visibility. Without an account the server is open.

-- One row. A change below raises the version in its own transaction, so that replicas drop what they remember.
create table access_state (
    id      bigint not null primary key,
    version bigint not null,
    constraint access_state_single check (id = 1)
);
insert into access_state (id, version) values (1, 1);

create table accounts (
    id          text not null primary key,
    kind        text not null,
    name        text not null,      -- of a robot: NAMESPACE+NAME
    password    text,                           -- Argon2id, in the PHC format; null: no login with a password
    server_role text,
    epoch       bigint not null default 0,      -- raised to invalidate sessions and access tokens
    created_at  bigint not null,
    disabled_at bigint,
    constraint accounts_name unique (name),
    constraint accounts_kind check (kind in ('user', 'robot')),
    constraint accounts_server_role check (server_role in ('auditor', 'admin'))
);

create table groups (
    id         text not null primary key,
    name       text not null,
    created_at bigint not null,
    constraint groups_name unique (name)
);

create table group_members (
    account  text not null,
    group_id text not null,
    primary key (account, group_id),
    constraint group_members_account foreign key (account) references accounts (id) on delete cascade,
    constraint group_members_group foreign key (group_id) references groups (id) on delete cascade
);
create index group_members_by_group on group_members (group_id);

-- A target is a repository, or a namespace with all its repositories: `NAMESPACE/*`.
create table grants (
    target     text not null,
    subject    text not null,                   -- the id of an account or a group
    role       bigint not null,                 -- 1 read, 2 write, 3 maintain, 4 own
    granted_at bigint not null,
    primary key (target, subject),
    constraint grants_role check (role between 1 and 4)
);
create index grants_by_subject on grants (subject, target);

-- Who may read without a grant. A repository without a row has its namespace's visibility, else it is private.
create table visibilities (
    target     text not null primary key,
    visibility bigint not null,                 -- 0 private, 1 internal, 2 public
    constraint visibilities_visibility check (visibility between 0 and 2)
);

-- Secrets are random, so their digest is enough to recognise them.
create table access_tokens (
    id         text not null primary key,
    account    text not null,
    name       text not null,
    secret     text not null,                   -- the digest
    last_four  text not null,
    scope      text not null,                   -- JSON
    created_at bigint not null,
    expires_at bigint,
    used_at    bigint,
    revoked_at bigint,
    constraint access_tokens_secret unique (secret),
    constraint access_tokens_account foreign key (account) references accounts (id) on delete cascade
);
create index access_tokens_by_account on access_tokens (account, id);

-- The ed25519 keys with which ollama signs its requests.
create table ollama_keys (
    id         text not null primary key,
    account    text not null,
    public_key text not null,                   -- 32 bytes in hexadecimal
    name       text not null,
    created_at bigint not null,
    used_at    bigint,
    constraint ollama_keys_public_key unique (public_key),
    constraint ollama_keys_account foreign key (account) references accounts (id) on delete cascade
);
create index ollama_keys_by_account on ollama_keys (account, id);

-- Sessions of browsers.
create table sessions (
    id         text not null primary key,
    account    text not null,
    secret     text not null,                   -- the digest of the cookie's value
    address    text not null,
    agent      text not null,
    created_at bigint not null,
    used_at    bigint not null,
    constraint sessions_secret unique (secret),
    constraint sessions_account foreign key (account) references accounts (id) on delete cascade
);
create index sessions_by_account on sessions (account, id);
create index sessions_by_use on sessions (used_at);

-- Programs that wait until a person allows their sign-in in a browser (RFC 8628).
create table device_logins (
    device_code text not null primary key,      -- the digest
    user_code   text not null,
    client      text not null,
    access      text not null,                  -- the access level of its token
    address     text not null,
    created_at  bigint not null,
    polled_at   bigint not null default 0,
    account     text,                           -- who has decided
    state       text not null default 'pending',
    constraint device_logins_user_code unique (user_code),
    constraint device_logins_state check (state in ('pending', 'allowed', 'denied')),
    constraint device_logins_account foreign key (account) references accounts (id) on delete cascade
);
create index device_logins_by_age on device_logins (created_at);

-- Values that are accepted once: nonces of signatures.
create table used_values (
    value      text not null primary key,
    expires_at bigint not null
);
create index used_values_by_expiry on used_values (expires_at);

-- Failed sign-ins, by account and address, and by address.
create table sign_in_failures (
    subject   text not null primary key,
    failures  bigint not null,
    next_at   bigint not null,
    failed_at bigint not null
);
create index sign_in_failures_by_age on sign_in_failures (failed_at);

-- Tags that are never moved or deleted, by pattern.
create table tag_rules (
    target  text not null,
    pattern text not null,
    primary key (target, pattern)
);

-- How many bytes the blobs of a namespace may have.
create table quotas (
    namespace   text not null primary key,
    limit_bytes bigint not null
);

-- Who did what. Rows are only added, and deleted when they are old.
create table audit (
    id      text not null primary key,          -- a UUID of version 7, ordered by time
    at      bigint not null,
    actor   text not null,                      -- `user:alice`, `anonymous`, `server`
    account text,
    via     text,                               -- `password`, or a credential and its id: `token 019a...`
    action  text not null,
    target  text not null,
    outcome text not null,
    address text,
    agent   text,
    request text,                               -- the id of the request
    detail  text,                               -- JSON
    constraint audit_outcome check (outcome in ('ok', 'refused'))
);
create index audit_by_actor on audit (actor, id);
create index audit_by_target on audit (target, id);
create index audit_by_age on audit (at);

-- Who did it. Null for changes before this version.
alter table tags add column actor text;
alter table removals add column actor text;
-- The account of an upload, which may continue it with an access token that has expired meanwhile.
alter table uploads add column account text;
