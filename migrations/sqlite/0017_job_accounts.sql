-- The account that started a job: it may follow and cancel the job. Null: a caller without an account.
alter table jobs add column account text;
