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

-- Mail. A mailbox is a chain: entry n gets the number n, and head n = hash of head n-1, n and the envelope's id.
CREATE TABLE IF NOT EXISTS mailbox (
  agent INTEGER PRIMARY KEY REFERENCES agent (number),
  seq INTEGER NOT NULL DEFAULT 0,
  head BLOB NOT NULL,
  folded INTEGER NOT NULL DEFAULT 0,  -- entries up to this one have left the table
  folded_head BLOB NOT NULL,
  e INTEGER NOT NULL DEFAULT 0,       -- the highest incarnation that has logged in
  crt BLOB,                           -- and its certificate
  waiting INTEGER NOT NULL DEFAULT 0,
  waiting_bytes INTEGER NOT NULL DEFAULT 0,
  strange INTEGER NOT NULL DEFAULT 0, -- of those that wait: from agents that are no contacts
  strange_bytes INTEGER NOT NULL DEFAULT 0,
  held INTEGER NOT NULL DEFAULT 0,
  held_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

-- state: 0 waits, 1 is held (received, not yet secured), 2 is gone; then the row is a tombstone, and `why` says why.
CREATE TABLE IF NOT EXISTS mail (
  n INTEGER PRIMARY KEY,
  agent INTEGER NOT NULL REFERENCES mailbox (agent),
  seq INTEGER NOT NULL,
  id BLOB NOT NULL,
  head BLOB NOT NULL,                 -- of the chain after this entry
  dk BLOB,                            -- sender and key of the message; NULL where a newer entry took its place
  bd BLOB NOT NULL,                   -- digest of its words, under a key that no relay has
  sender BLOB NOT NULL DEFAULT x'',   -- digest of the sender's id: how much of the room is its
  g INTEGER NOT NULL,                 -- position of the keys behind the sender's certificate
  s INTEGER NOT NULL,
  envelope BLOB,
  bytes INTEGER NOT NULL,
  at INTEGER NOT NULL,
  exp INTEGER NOT NULL,
  state INTEGER NOT NULL DEFAULT 0,
  strange INTEGER NOT NULL,
  mark INTEGER NOT NULL DEFAULT 0,
  why TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS mail_seq ON mail (agent, seq);
CREATE UNIQUE INDEX IF NOT EXISTS mail_dk ON mail (agent, dk) WHERE dk IS NOT NULL;
CREATE INDEX IF NOT EXISTS mail_waiting ON mail (agent, seq) WHERE state = 0;
CREATE INDEX IF NOT EXISTS mail_held ON mail (agent, mark) WHERE state = 1;
CREATE INDEX IF NOT EXISTS mail_exp ON mail (exp) WHERE state < 2;
CREATE INDEX IF NOT EXISTS mail_sender ON mail (agent, sender, bytes) WHERE state < 2;

CREATE TRIGGER IF NOT EXISTS mail_counted AFTER UPDATE OF state ON mail WHEN old.state <> new.state BEGIN
  UPDATE mailbox SET
    waiting = waiting - (old.state = 0) + (new.state = 0),
    waiting_bytes = waiting_bytes - (old.state = 0) * old.bytes + (new.state = 0) * old.bytes,
    strange = strange - (old.state = 0) * old.strange + (new.state = 0) * old.strange,
    strange_bytes = strange_bytes - (old.state = 0) * old.strange * old.bytes + (new.state = 0) * old.strange * old.bytes,
    held = held - (old.state = 1) + (new.state = 1),
    held_bytes = held_bytes - (old.state = 1) * old.bytes + (new.state = 1) * old.bytes
  WHERE agent = old.agent;
END;

-- Agents whose mail has the large quota of a mailbox.
CREATE TABLE IF NOT EXISTS contact (
  agent INTEGER NOT NULL REFERENCES agent (number),
  peer TEXT NOT NULL,
  PRIMARY KEY (agent, peer)
) STRICT, WITHOUT ROWID;
