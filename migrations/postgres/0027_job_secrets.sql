-- The credentials that a job needs for another server. Removed when the job ends.
alter table jobs add column secret text;
