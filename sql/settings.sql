--
-- Settings: defaults, units, limits, and who may set them.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- loaded by the first call of a session, and checked from then on
SELECT outcome FROM idem_lookup('settings', 'a');
SHOW idempotency.ttl;
SHOW idempotency.once_ttl;
SHOW idempotency.lease;
SHOW idempotency.wait;
SHOW idempotency.on_abandon;
SHOW idempotency.durable_claims;
SHOW idempotency.max_response;

-- units on all times and sizes
SET idempotency.ttl = '90min';
SHOW idempotency.ttl;
SET idempotency.ttl = 60;
SHOW idempotency.ttl;
SET idempotency.lease = '1.5s';
SHOW idempotency.lease;
SET idempotency.lease = 250;
SHOW idempotency.lease;
SET idempotency.wait = '2s';
SHOW idempotency.wait;
SET idempotency.max_response = '1MB';
SHOW idempotency.max_response;
SET idempotency.once_ttl = '7d';
SHOW idempotency.once_ttl;
SET idempotency.on_abandon = retry;
SHOW idempotency.on_abandon;
SET idempotency.durable_claims = off;

-- refused, with the setting named
CREATE FUNCTION pg_temp.refused(setting text, value text) RETURNS text LANGUAGE sql AS $$
	SELECT f.code || ': ' || regexp_replace(f.message, ' \(.*', '') FROM pg_temp.failing(format('SET idempotency.%s = %L', setting, value)) f
$$;
SELECT pg_temp.refused('ttl', '0');
SELECT pg_temp.refused('ttl', '-1');
SELECT pg_temp.refused('ttl', 'forever');
SELECT pg_temp.refused('ttl', '1 MB');
SELECT pg_temp.refused('once_ttl', '0');
SELECT pg_temp.refused('lease', '-1');
SELECT pg_temp.refused('lease', '1 month');
SELECT pg_temp.refused('wait', '-1ms');
SELECT pg_temp.refused('on_abandon', 'forget');
SELECT pg_temp.refused('on_abandon', '');
SELECT pg_temp.refused('durable_claims', 'maybe');
SELECT pg_temp.refused('max_response', '-1');
SELECT pg_temp.refused('max_response', '1GB');
RESET ALL;
SHOW idempotency.ttl;

-- the prefix is ours: a misspelt name is an error
SET idempotency.tll = '1h';

-- what they are for: each call without the argument takes the setting
BEGIN;
SET LOCAL idempotency.lease = '1h';
SET LOCAL idempotency.ttl = '2h';
SET LOCAL idempotency.on_abandon = 'retry';
SELECT outcome FROM idem_claim('settings', 'a');
SELECT pg_temp.kept('settings', 'a');
SELECT outcome FROM idem_claim('settings', 'b', lease => '10 min', ttl => '1 hour', on_abandon => 'unknown');
SELECT pg_temp.kept('settings', 'b');
COMMIT;
SHOW idempotency.lease;

-- a setting's change does not reach what is stored
SELECT pg_temp.pass('settings', 'a', '1 hour');
SELECT outcome FROM idem_lookup('settings', 'a');
SELECT pg_temp.pass('settings', 'b', '1 hour');
SET idempotency.on_abandon = 'retry';
SELECT outcome FROM idem_lookup('settings', 'b');
RESET idempotency.on_abandon;

-- per function
CREATE FUNCTION pg_temp.leased() RETURNS text LANGUAGE sql SET idempotency.lease = '20min'
AS $$ SELECT pg_temp.distance(lease_expires_at) FROM idem_claim('settings', 'c') $$;
SELECT pg_temp.leased();

-- per role and database, for the sessions to come, before the library is loaded
CREATE ROLE regress_settings;
ALTER ROLE regress_settings SET idempotency.lease = '1h';
ALTER ROLE regress_settings SET idempotency.on_abandon = 'forget';
SELECT rolconfig FROM pg_roles WHERE rolname = 'regress_settings';
SELECT current_database() AS db \gset
ALTER DATABASE :"db" SET idempotency.ttl = '3h';
ALTER DATABASE :"db" SET idempotency.on_abandon = 'retry';
\c
SELECT outcome FROM idem_claim('settings', 'd', lease => '10 min');
SELECT ttl, on_abandon, lease FROM idem_record WHERE (scope, key) = ('settings', 'd');
ALTER DATABASE :"db" RESET idempotency.ttl;
ALTER DATABASE :"db" RESET idempotency.on_abandon;
DROP ROLE regress_settings;

-- a bad value that was set before the library was loaded is not taken
\c
SET idempotency.ttl = 'forever';
SELECT outcome FROM idem_lookup('settings', 'a');
SHOW idempotency.ttl;

-- anyone may set them
CREATE ROLE regress_settings;
SET ROLE regress_settings;
SET idempotency.ttl = '1h';
SET idempotency.once_ttl = '1h';
SET idempotency.lease = '1h';
SET idempotency.wait = '1s';
SET idempotency.on_abandon = 'retry';
SET idempotency.durable_claims = off;
SET idempotency.max_response = '1kB';
RESET ROLE;
DROP ROLE regress_settings;

DELETE FROM idem_record WHERE scope = 'settings';
