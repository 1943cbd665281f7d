-- How many runs of a job ended with their process. Runs that a stopping server returns to the queue are not counted.
alter table jobs add column lost_runs bigint not null default 0;
