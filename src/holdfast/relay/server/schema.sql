-- The store of one relay. Every row is written and synced before the answer that follows from it.
CREATE TABLE IF NOT EXISTS meta (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- An agent that is registered here: it has a log. `number` is the order of registration.
CREATE TABLE IF NOT EXISTS agent (
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  at INTEGER NOT NULL,              -- unix seconds
  invite TEXT,                      -- digest of the invite that it came with
  log_lines INTEGER NOT NULL DEFAULT 0,
  log_bytes INTEGER NOT NULL DEFAULT 0,
  profile BLOB,                     -- the newest line, as it was signed
  head BLOB                         -- the newest backup head, as it was signed
) STRICT;

-- Records and receipts of its key log, in the order in which they were taken. Never changed, never removed.
CREATE TABLE IF NOT EXISTS log_line (
  agent INTEGER NOT NULL REFERENCES agent (number),
  n INTEGER NOT NULL,
  line BLOB NOT NULL,
  PRIMARY KEY (agent, n)
) STRICT, WITHOUT ROWID;

-- Which agents commit to a recovery key: words and this relay say which agent it is.
CREATE TABLE IF NOT EXISTS recovery (
  digest TEXT NOT NULL,
  agent INTEGER NOT NULL REFERENCES agent (number),
  PRIMARY KEY (digest, agent)
) STRICT, WITHOUT ROWID;

-- Names of agents at this relay. Bound to an id, so new keys keep them. `free_at`: the agent has given it up.
CREATE TABLE IF NOT EXISTS handle (
  name TEXT PRIMARY KEY,
  agent INTEGER NOT NULL REFERENCES agent (number),
  at INTEGER NOT NULL,
  free_at INTEGER
) STRICT, WITHOUT ROWID;

-- Invites of the operator, by digest. One registers one agent, and that agent as often as it likes.
CREATE TABLE IF NOT EXISTS invite (
  digest TEXT PRIMARY KEY,
  at INTEGER NOT NULL,
  note TEXT NOT NULL,
  agent TEXT                        -- the id that used it
) STRICT, WITHOUT ROWID;

-- Two statements of one rank by one agent: both lines, for its owner and for everyone who asks.
CREATE TABLE IF NOT EXISTS evidence (
  agent INTEGER NOT NULL REFERENCES agent (number),
  digest TEXT NOT NULL,
  at INTEGER NOT NULL,
  line BLOB NOT NULL,
  PRIMARY KEY (agent, digest)
) STRICT, WITHOUT ROWID;
