-- The embedded journal, schema 1. What each column means: docs/formats/journal.md.
-- Clear columns hold ids, states, times and keyed hashes; payloads are sealed.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE session (
  s          INTEGER PRIMARY KEY,
  session_id TEXT    NOT NULL UNIQUE,
  worker     TEXT    NOT NULL,
  pid        INTEGER NOT NULL,
  boot_id    TEXT    NOT NULL,
  until_ms   INTEGER NOT NULL,          -- CLOCK_BOOTTIME of boot_id
  begun_ms   INTEGER NOT NULL,
  ended      INTEGER NOT NULL DEFAULT 0 -- 0 open, 1 given up, 2 found dead
) STRICT;
CREATE INDEX session_open ON session (s) WHERE ended = 0;

CREATE TABLE task (
  t             INTEGER PRIMARY KEY,
  task_id       BLOB    NOT NULL UNIQUE,
  name          TEXT    NOT NULL,
  fingerprint   BLOB    NOT NULL,       -- of the submission
  state         TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'sleeping', 'waiting',
                                                  'parked', 'succeeded', 'failed', 'cancelled')),
  epoch         INTEGER NOT NULL,
  seq           INTEGER NOT NULL,       -- of the newest record
  head          BLOB    NOT NULL,       -- its hash
  last          INTEGER NOT NULL,       -- its number
  session       INTEGER,
  due_ms        INTEGER NOT NULL,       -- 2^63 - 1: not by time
  created_ms    INTEGER NOT NULL,
  changed_ms    INTEGER NOT NULL,
  crashes       INTEGER NOT NULL DEFAULT 0,
  cancel_asked  INTEGER NOT NULL DEFAULT 0,
  keep_until_ms INTEGER NOT NULL DEFAULT 0,
  key_id        INTEGER NOT NULL,
  data_key      BLOB    NOT NULL,
  erased_ms     INTEGER
) STRICT;
CREATE INDEX task_due ON task (due_ms) WHERE state IN ('queued', 'sleeping', 'waiting');
CREATE INDEX task_held ON task (session) WHERE session IS NOT NULL;

CREATE TABLE record (
  n           INTEGER PRIMARY KEY,
  t           INTEGER NOT NULL,
  seq         INTEGER NOT NULL,
  prev        INTEGER NOT NULL,         -- number of the record before, 0 for the first
  kind        INTEGER NOT NULL,
  what        INTEGER NOT NULL,         -- events, eight bits each
  ordinal     TEXT    NOT NULL,
  epoch       INTEGER NOT NULL,
  at_ms       INTEGER NOT NULL,
  boot_ms     INTEGER NOT NULL,
  effect_key  BLOB    NOT NULL,
  fingerprint BLOB    NOT NULL,
  slot        INTEGER NOT NULL,
  quiet       INTEGER NOT NULL,
  body        BLOB    NOT NULL,
  hash        BLOB    NOT NULL
) STRICT;

CREATE TABLE inbox (
  n       INTEGER PRIMARY KEY AUTOINCREMENT,
  t       INTEGER NOT NULL,
  ordinal TEXT    NOT NULL,
  kind    TEXT    NOT NULL,
  body    BLOB    NOT NULL,
  at_ms   INTEGER NOT NULL,
  applied INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX inbox_task ON inbox (t);

CREATE TABLE notice (
  notice_id TEXT    PRIMARY KEY,
  key_id    INTEGER NOT NULL,
  body      BLOB    NOT NULL,
  at_ms     INTEGER NOT NULL,
  told_ms   INTEGER
) STRICT;
CREATE INDEX notice_untold ON notice (at_ms) WHERE told_ms IS NULL;

CREATE TABLE blob (
  digest BLOB    PRIMARY KEY,
  size   INTEGER NOT NULL,
  key_id INTEGER NOT NULL,
  at_ms  INTEGER NOT NULL,
  body   BLOB    NOT NULL
) STRICT;
CREATE TABLE blob_use (
  digest BLOB    NOT NULL,
  t      INTEGER NOT NULL,
  PRIMARY KEY (digest, t)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_use_task ON blob_use (t);

-- I7 and I8, also against a careless hand with a SQL shell.
CREATE TRIGGER record_never_changes BEFORE UPDATE ON record
BEGIN SELECT raise(ABORT, 'a record never changes'); END;
CREATE TRIGGER record_kept BEFORE DELETE ON record
WHEN (SELECT erased_ms FROM task WHERE t = OLD.t) IS NULL
BEGIN SELECT raise(ABORT, 'a record of an open task is kept'); END;
CREATE TRIGGER epoch_only_rises BEFORE UPDATE OF epoch ON task WHEN NEW.epoch < OLD.epoch
BEGIN SELECT raise(ABORT, 'an epoch only rises'); END;
CREATE TRIGGER inbox_never_changes BEFORE UPDATE OF t, ordinal, kind, body, at_ms ON inbox
BEGIN SELECT raise(ABORT, 'an inbox item never changes'); END;
