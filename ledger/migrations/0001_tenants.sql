-- Tenants, apps, keys, accounts, adjustments, operations, publications.
-- Portable SQL: statements end with a semicolon at a line's end. Credits and
-- milliseconds since 1970 are BIGINT. total = -1 is unlimited; NULL is "no limit".
-- Flags and JSON are text. Ids are compared byte by byte.

CREATE TABLE tenant (
  id            VARCHAR(64)  NOT NULL PRIMARY KEY,
  name          VARCHAR(200) NOT NULL,
  store         VARCHAR(64)  NOT NULL,
  timezone      VARCHAR(64)  NOT NULL,
  status        VARCHAR(16)  NOT NULL,
  overage_limit BIGINT       NOT NULL,
  day_credits   BIGINT,
  month_credits BIGINT,
  limits        TEXT         NOT NULL,
  policy        TEXT         NOT NULL,
  version       BIGINT       NOT NULL,
  doc_version   BIGINT       NOT NULL,
  created_at    BIGINT       NOT NULL,
  updated_at    BIGINT       NOT NULL
);
CREATE INDEX tenant_by_store ON tenant (store, id);

CREATE TABLE app (
  tenant        VARCHAR(64)  NOT NULL REFERENCES tenant (id),
  id            VARCHAR(64)  NOT NULL,
  name          VARCHAR(200) NOT NULL,
  day_credits   BIGINT,
  month_credits BIGINT,
  limits        TEXT         NOT NULL,
  version       BIGINT       NOT NULL,
  created_at    BIGINT       NOT NULL,
  PRIMARY KEY (tenant, id)
);

CREATE TABLE api_key (
  tenant        VARCHAR(64)  NOT NULL,
  id            VARCHAR(64)  NOT NULL,
  app           VARCHAR(64)  NOT NULL,
  name          VARCHAR(200) NOT NULL,
  status        VARCHAR(16)  NOT NULL,
  models        TEXT         NOT NULL,
  day_credits   BIGINT,
  month_credits BIGINT,
  limits        TEXT         NOT NULL,
  version       BIGINT       NOT NULL,
  created_at    BIGINT       NOT NULL,
  PRIMARY KEY (tenant, id),
  FOREIGN KEY (tenant, app) REFERENCES app (tenant, id)
);

CREATE TABLE api_secret (
  hash          VARCHAR(64)  NOT NULL PRIMARY KEY,
  tenant        VARCHAR(64)  NOT NULL,
  key_id        VARCHAR(64)  NOT NULL,
  expires_at    BIGINT       NOT NULL,
  version       BIGINT       NOT NULL,
  created_at    BIGINT       NOT NULL,
  FOREIGN KEY (tenant, key_id) REFERENCES api_key (tenant, id)
);
CREATE INDEX api_secret_by_key ON api_secret (tenant, key_id);

-- window_name is '' for the `ever` account, which is made with its tenant, app
-- or key; rows of days and months come with the first usage folded into them,
-- and their total is always -1: their limit is that of the scope.
CREATE TABLE account (
  tenant        VARCHAR(64)  NOT NULL REFERENCES tenant (id),
  scope         VARCHAR(8)   NOT NULL,
  scope_id      VARCHAR(64)  NOT NULL,
  window_name   VARCHAR(16)  NOT NULL,
  total         BIGINT       NOT NULL,
  spent         BIGINT       NOT NULL,
  fold          BIGINT       NOT NULL,
  adj           BIGINT       NOT NULL,
  adj_issued    BIGINT       NOT NULL,
  claim         VARCHAR(36)  NOT NULL,
  claim_until   BIGINT       NOT NULL,
  PRIMARY KEY (tenant, scope, scope_id, window_name)
);

-- is_open is 1 until Redis is known to hold the outcome: while pending, and while applied but not confirmed.
CREATE TABLE adjustment (
  tenant        VARCHAR(64)  NOT NULL REFERENCES tenant (id),
  scope         VARCHAR(8)   NOT NULL,
  scope_id      VARCHAR(64)  NOT NULL,
  num           BIGINT       NOT NULL,
  delta         BIGINT       NOT NULL,
  state         VARCHAR(16)  NOT NULL,
  is_open       BIGINT       NOT NULL,
  reason        VARCHAR(200) NOT NULL,
  reply         TEXT         NOT NULL,
  op_id         VARCHAR(128) NOT NULL,
  created_at    BIGINT       NOT NULL,
  ended_at      BIGINT       NOT NULL,
  PRIMARY KEY (tenant, scope, scope_id, num)
);
CREATE INDEX adjustment_open ON adjustment (is_open, tenant, scope, scope_id, num);

CREATE TABLE op (
  op_id         VARCHAR(128) NOT NULL PRIMARY KEY,
  what          VARCHAR(64)  NOT NULL,
  digest        VARCHAR(64)  NOT NULL,
  answer        TEXT         NOT NULL,
  created_at    BIGINT       NOT NULL
);

-- What a store still has to be told. One row per thing, at its newest version.
CREATE TABLE publication (
  tenant        VARCHAR(64)  NOT NULL REFERENCES tenant (id),
  kind          VARCHAR(16)  NOT NULL,
  item          VARCHAR(128) NOT NULL,
  store         VARCHAR(64)  NOT NULL,
  version       BIGINT       NOT NULL,
  queued_at     BIGINT       NOT NULL,
  PRIMARY KEY (tenant, kind, item)
);
CREATE INDEX publication_by_store ON publication (store, queued_at);

CREATE TABLE admin_log (
  id            VARCHAR(36)  NOT NULL PRIMARY KEY,
  at            BIGINT       NOT NULL,
  who           VARCHAR(200) NOT NULL,
  what          VARCHAR(64)  NOT NULL,
  op_id         VARCHAR(128) NOT NULL,
  tenant        VARCHAR(64)  NOT NULL,
  item          VARCHAR(64)  NOT NULL,
  old_doc       TEXT         NOT NULL,
  new_doc       TEXT         NOT NULL
);
CREATE INDEX admin_log_by_tenant ON admin_log (tenant, at);
