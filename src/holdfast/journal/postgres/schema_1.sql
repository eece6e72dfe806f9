-- The journal in PostgreSQL, schema 1. `$s` is the journal's own schema. What each column means: docs/formats/journal.md.
-- Portable on purpose: plain tables, no triggers, no advisory locks. Payloads are sealed, as in the embedded journal.

CREATE TABLE $s.version (number integer NOT NULL);

CREATE TABLE $s.meta (
  key   text PRIMARY KEY,
  value text NOT NULL
);

-- One row. Submissions and claims take it FOR SHARE; raising it raises the epoch of every open task in one transaction.
CREATE TABLE $s.incarnation (
  one           boolean PRIMARY KEY DEFAULT true CHECK (one),
  number        bigint  NOT NULL,
  lost_after_ms bigint  NOT NULL DEFAULT 0,  -- of the newest restore
  restored_ms   bigint  NOT NULL DEFAULT 0
);

CREATE TABLE $s.session (
  s             bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session_id    text    NOT NULL UNIQUE,
  worker        text    NOT NULL,
  pid           integer NOT NULL,
  host_id       text    NOT NULL,
  boot_id       text    NOT NULL,
  until_ms      bigint  NOT NULL,            -- time of the database
  until_boot_ms bigint  NOT NULL,            -- the same on the boot clock of its host, for people
  ttl_ms        bigint  NOT NULL,
  begun_ms      bigint  NOT NULL,
  ended         integer NOT NULL DEFAULT 0,  -- 0 open, 1 given up, 2 found dead
  serves        text[]
) WITH (fillfactor = 50);
CREATE INDEX session_open ON $s.session (s) WHERE ended = 0;

-- Record numbers and fences: they rise, but not in the order of commits (docs/decisions/0052).
CREATE SEQUENCE $s.record_number MAXVALUE 1099511627775 NO CYCLE CACHE 1;

-- Not a CHECK of the table: the server would read that one again with every step, which changes no state.
CREATE DOMAIN $s.task_state AS text CHECK (VALUE IN ('queued', 'running', 'sleeping', 'waiting',
                                                     'parked', 'succeeded', 'failed', 'cancelled'));
CREATE TABLE $s.task (
  t             bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_id       bytea   NOT NULL UNIQUE,
  name          text    NOT NULL,
  fingerprint   bytea   NOT NULL,            -- of the submission
  state         $s.task_state NOT NULL,
  epoch         bigint  NOT NULL,
  seq           integer NOT NULL,            -- of the newest record
  head          bytea   NOT NULL,            -- its hash
  session       bigint,
  due_ms        bigint  NOT NULL,            -- 2^63 - 1: not by time
  created_ms    bigint  NOT NULL,
  changed_ms    bigint  NOT NULL,
  crashes       integer NOT NULL DEFAULT 0,
  cancel_asked  boolean NOT NULL DEFAULT false,
  keep_until_ms bigint  NOT NULL DEFAULT 0,
  key_id        integer NOT NULL,
  data_key      bytea   NOT NULL,
  erased_ms     bigint
) WITH (fillfactor = 70);
CREATE INDEX task_due ON $s.task (due_ms, t) WHERE state IN ('queued', 'sleeping', 'waiting');
CREATE INDEX task_due_by_name ON $s.task (name, due_ms, t) WHERE state IN ('queued', 'sleeping', 'waiting');
CREATE INDEX task_held ON $s.task (session) WHERE session IS NOT NULL;
-- Not by changed_ms: a step would then need a new entry in every index of its task.
CREATE INDEX task_ended ON $s.task (created_ms) WHERE state IN ('succeeded', 'failed', 'cancelled') AND erased_ms IS NULL;
CREATE INDEX task_erased ON $s.task (erased_ms) WHERE erased_ms IS NOT NULL;

-- Empty but for transactions under way: submissions that name each other's ids meet at a key.
CREATE TABLE $s.meeting (task_id bytea PRIMARY KEY);

CREATE TABLE $s.record (
  t           bigint   NOT NULL,
  seq         integer  NOT NULL,
  n           bigint   NOT NULL,
  kind        smallint NOT NULL,
  what        bigint   NOT NULL,             -- events, eight bits each
  ordinal     text     NOT NULL,
  epoch       bigint   NOT NULL,
  at_ms       bigint   NOT NULL,
  boot_ms     bigint   NOT NULL,
  effect_key  bytea    NOT NULL,
  fingerprint bytea    NOT NULL,
  slot        smallint NOT NULL,
  quiet       boolean  NOT NULL,
  body        bytea    NOT NULL,
  hash        bytea    NOT NULL,
  PRIMARY KEY (t, seq)
);
CREATE INDEX record_effect ON $s.record (effect_key) WHERE effect_key <> '';

-- The running total, one row for each lane of a process (docs/decisions/0054); and how far its commits have come.
CREATE TABLE $s.tally (
  w      text   PRIMARY KEY,
  stamp  bigint NOT NULL,                    -- one more with each commit: says what became of one in doubt
  total  bytea  NOT NULL,
  last   bigint NOT NULL,                    -- the highest record number that it has committed
  at_ms  bigint NOT NULL
) WITH (fillfactor = 50);

-- Numbers in the order of commits: whoever takes one holds its row until then.
CREATE TABLE $s.counter (
  name  text   PRIMARY KEY,
  value bigint NOT NULL,
  head  bytea  NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

CREATE TABLE $s.inbox (
  n       bigint  PRIMARY KEY,
  mark    bytea   NOT NULL UNIQUE,           -- the same drop again is the same item
  t       bigint  NOT NULL,
  ordinal text    NOT NULL,
  kind    text    NOT NULL,
  body    bytea   NOT NULL,
  at_ms   bigint  NOT NULL,
  applied boolean NOT NULL DEFAULT false
);
CREATE INDEX inbox_task ON $s.inbox (t);
CREATE INDEX inbox_open ON $s.inbox (n) WHERE NOT applied;

CREATE TABLE $s.notice (
  notice_id text    PRIMARY KEY,
  key_id    integer NOT NULL,
  body      bytea   NOT NULL,
  at_ms     bigint  NOT NULL,
  told_ms   bigint
);
CREATE INDEX notice_untold ON $s.notice (at_ms) WHERE told_ms IS NULL;

CREATE TABLE $s.blob (
  digest bytea   PRIMARY KEY,
  size   integer NOT NULL,
  key_id integer NOT NULL,
  at_ms  bigint  NOT NULL,
  body   bytea   NOT NULL
);
CREATE TABLE $s.blob_use (
  digest bytea  NOT NULL,
  t      bigint NOT NULL,
  PRIMARY KEY (digest, t)
);
CREATE INDEX blob_use_task ON $s.blob_use (t);

CREATE TABLE $s.remark (
  n         bigint  PRIMARY KEY,             -- rises without a gap; the newest is never erased
  remark_id text    NOT NULL UNIQUE,         -- the same id is the same remark
  key_id    integer NOT NULL,
  at_ms     bigint  NOT NULL,
  body      bytea   NOT NULL,
  prev_hash bytea   NOT NULL,
  hash      bytea   NOT NULL
);

-- Up to which remark each agent folder has its files; and turns that one process takes at a time.
CREATE TABLE $s.remark_mark (
  folder text   PRIMARY KEY,
  name   text   NOT NULL,                    -- for people
  number bigint NOT NULL,
  at_ms  bigint NOT NULL
);
CREATE TABLE $s.turn (
  name     text   PRIMARY KEY,
  holder   text   NOT NULL,
  until_ms bigint NOT NULL                   -- time of the database
);

INSERT INTO $s.counter (name, value) VALUES ('inbox', 0), ('remark', 0), ('remarks erased', 0);
