-- Schema 2: remarks, the lines that an agent's memory files are made from.

CREATE TABLE remark (
  n         INTEGER PRIMARY KEY,        -- rises; the newest is never erased
  remark_id TEXT    NOT NULL UNIQUE,    -- the same id is the same remark
  key_id    INTEGER NOT NULL,
  at_ms     INTEGER NOT NULL,
  body      BLOB    NOT NULL,
  prev_hash BLOB    NOT NULL,
  hash      BLOB    NOT NULL
) STRICT;
CREATE TRIGGER remark_never_changes BEFORE UPDATE ON remark
BEGIN SELECT raise(ABORT, 'a remark never changes'); END;
CREATE TRIGGER remark_kept BEFORE DELETE ON remark
WHEN OLD.n > coalesce((SELECT value FROM meta WHERE key = 'remarks_written'), 0)
BEGIN SELECT raise(ABORT, 'a remark is kept until it is in its file'); END;
