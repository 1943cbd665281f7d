-- Events on their way to the addresses of the settings: one row for each event and address, written with the change that it tells of.
create table webhook_deliveries (
    id          text not null primary key,
    event       text not null,                  -- its id, the same for every address
    kind        text not null,
    target      text not null,                  -- the address
    payload     text not null,                  -- JSON, sent as it is
    created_at  bigint not null,
    next_at     bigint not null,                -- when it is due; whoever attempts it moves this ahead first
    attempts    bigint not null,
    problem     text,                           -- why the last attempt failed
    given_up_at bigint
);
create index webhook_deliveries_due on webhook_deliveries (next_at) where given_up_at is null;
create index webhook_deliveries_given_up on webhook_deliveries (given_up_at) where given_up_at is not null;
