-- Schema 4: one mark per agent folder of how far the remarks are in its files; before, one for all.

CREATE TABLE remark_mark (
  folder TEXT    PRIMARY KEY,   -- '': of a journal from before
  name   TEXT    NOT NULL,      -- for people: where it is
  n      INTEGER NOT NULL,      -- remarks up to this one are in its files
  at_ms  INTEGER NOT NULL
) STRICT;
INSERT INTO remark_mark SELECT '', '', CAST(value AS INTEGER), 0 FROM meta WHERE key = 'remarks_written';
INSERT INTO meta SELECT 'remarks_erased', value FROM meta WHERE key = 'remarks_written';

DROP TRIGGER remark_kept;
CREATE TRIGGER remark_kept BEFORE DELETE ON remark
WHEN OLD.n > coalesce((SELECT min(n) FROM remark_mark), 0)
BEGIN SELECT raise(ABORT, 'a remark is kept until it is in its files'); END;
