-- Schema 3: the running total over all tasks, kept beside the newest record. It is no part of that record.

ALTER TABLE record ADD COLUMN total BLOB NOT NULL DEFAULT x'';

DROP TRIGGER record_never_changes;
CREATE TRIGGER record_never_changes
BEFORE UPDATE OF n, t, seq, prev, kind, what, ordinal, epoch, at_ms, boot_ms, effect_key, fingerprint, slot, quiet,
                 body, hash ON record
BEGIN SELECT raise(ABORT, 'a record never changes'); END;
