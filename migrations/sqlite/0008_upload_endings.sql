-- Since when an upload's bytes are being removed: from then on no replica may continue it.
alter table uploads add column ending_at bigint;
