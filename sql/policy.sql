--
-- idem_policy: the defaults of a scope and who may use it, in force from the
-- next call on.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

CREATE FUNCTION pg_temp.made(_scope text, _key text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', 'ttl', ttl, 'lease', coalesce(lease::text, 'none'), on_abandon)
	FROM idem_record WHERE (scope, key) = (_scope, _key)
$$;

-- without a policy: the settings
SELECT outcome FROM idem_claim('policy', 'a', lease => '1 min');
SELECT pg_temp.made('policy', 'a');

-- with one: what it says; an argument overrides it
INSERT INTO idem_policy VALUES ('policy', '2 h', '30 s', '0', 'retry');
SELECT outcome FROM idem_claim('policy', 'b');
SELECT pg_temp.made('policy', 'b');
SELECT outcome FROM idem_claim('policy', 'c', ttl => '3 h', lease => '5 s', on_abandon => 'unknown');
SELECT pg_temp.made('policy', 'c');
BEGIN;
SELECT outcome FROM idem_claim('policy', 'd', lease => '0');
SELECT pg_temp.made('policy', 'd');
ROLLBACK;

-- it is for one scope, compared bytewise
SELECT idem_once('policy2', 'b'), idem_once('Policy', 'b'), idem_once('policy ', 'b'), idem_once('polic', 'b');
SELECT DISTINCT ttl FROM idem_record WHERE key = 'b' AND scope <> 'policy';

-- it goes before the settings; where it is silent, they speak
SET idempotency.ttl = '7 d';
SET idempotency.lease = '7 min';
SET idempotency.on_abandon = 'unknown';
SELECT outcome FROM idem_claim('policy', 'e');
SELECT pg_temp.made('policy', 'e');
UPDATE idem_policy SET lease = NULL, on_abandon = NULL;
SELECT outcome FROM idem_claim('policy', 'f');
SELECT pg_temp.made('policy', 'f');
UPDATE idem_policy SET ttl = NULL, lease = '0 s';
SELECT outcome FROM idem_claim('policy', 'g', lease => '1 s');
SELECT pg_temp.made('policy', 'g');
SELECT f.code FROM pg_temp.failing('SELECT idem_claim(''policy'', ''h'', claim_token => gen_random_uuid())') f;
RESET idempotency.ttl;
RESET idempotency.lease;
RESET idempotency.on_abandon;

-- wait: a row locked from elsewhere is not at hand, so the bound shows as time
UPDATE idem_policy SET wait = '200 ms', lease = '1 h';
SELECT outcome FROM idem_claim('policy', 'w');
SELECT clock_timestamp() AS before \gset
SELECT outcome FROM idem_claim('policy', 'w');
SELECT clock_timestamp() - :'before' >= interval '200 ms';
SELECT outcome FROM idem_takeover('policy', 'w');
SELECT clock_timestamp() - :'before' >= interval '400 ms';

-- the other calls that take a default
UPDATE idem_policy SET ttl = '5 d', wait = NULL, lease = '11 min', on_abandon = 'retry';
SELECT idem_once('policy', 'once');
SELECT pg_temp.made('policy', 'once');
SELECT idem_once('policy', 'once, for long', ttl => '9 d');
SELECT pg_temp.made('policy', 'once, for long');
SELECT idem_once_batch('policy', '{batch}');
SELECT pg_temp.made('policy', 'batch');
-- always a transactional claim
SELECT outcome FROM idem_execute('policy', 'execute', command => 'SELECT 1');
SELECT pg_temp.made('policy', 'execute');
UPDATE idem_record SET lease_expires_at = now() WHERE key = 'a';
SELECT outcome FROM idem_takeover('policy', 'a');
SELECT pg_temp.made('policy', 'a');

-- a change counts for the transaction that makes it, and is undone with it
BEGIN;
UPDATE idem_policy SET ttl = '6 d';
SELECT idem_once('policy', 'own 1'), pg_temp.made('policy', 'own 1');
SAVEPOINT s;
DELETE FROM idem_policy;
SELECT idem_once('policy', 'own 2');
SELECT pg_temp.made('policy', 'own 2');
ROLLBACK TO s;
SELECT idem_once('policy', 'own 3');
SELECT pg_temp.made('policy', 'own 3');
TRUNCATE idem_policy;
SELECT idem_once('policy', 'own 4');
SELECT pg_temp.made('policy', 'own 4');
INSERT INTO idem_policy VALUES ('policy', '1 d');
SELECT idem_once('policy', 'own 5');
SELECT pg_temp.made('policy', 'own 5');
ROLLBACK;
SELECT idem_once('policy', 'own 6');
SELECT pg_temp.made('policy', 'own 6');

-- the statement that writes a row may read it, and fail: nothing of it is kept
DO $$
DECLARE
	total int;
BEGIN
	WITH w AS (INSERT INTO idem_policy VALUES ('policy3', '1 h') RETURNING scope)
	SELECT sum(CASE WHEN idem_once(w.scope, n::text) THEN 1 / (3 - n) END) INTO total FROM w, generate_series(1, 3) n;
EXCEPTION WHEN division_by_zero THEN
	RAISE NOTICE 'undone';
END $$;
SELECT idem_once('policy3', 'a');
SELECT pg_temp.made('policy3', 'a');
-- a trigger of one's own may call between ours and the row: it does not freeze what was before
CREATE FUNCTION regress_calls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_once('policy3', 'first'), idem_once('policy3', 'second');
	RETURN NEW;
END $$;
CREATE TRIGGER then_call BEFORE INSERT ON idem_policy FOR EACH ROW EXECUTE FUNCTION regress_calls();
BEGIN;
INSERT INTO idem_policy VALUES ('policy3', '1 h');
SELECT idem_once('policy3', 'own');
SELECT pg_temp.made('policy3', 'own');
ROLLBACK;
DROP TRIGGER then_call ON idem_policy;
DROP FUNCTION regress_calls;

-- every way to change it is noticed: COPY, MERGE's parts, replication's mode, TRUNCATE
CREATE FUNCTION pg_temp.next_ttl() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM idem_record WHERE key = 'noticed';
	PERFORM idem_once('policy', 'noticed');
	RETURN (SELECT ttl FROM idem_record WHERE key = 'noticed');
END $$;
DELETE FROM idem_policy;
SELECT pg_temp.next_ttl();
COPY idem_policy FROM stdin;
policy	1 day	\N	\N	\N	\N
\.
SELECT pg_temp.next_ttl();
INSERT INTO idem_policy VALUES ('policy', '2 d') ON CONFLICT (scope) DO UPDATE SET ttl = EXCLUDED.ttl;
SELECT pg_temp.next_ttl();
SET session_replication_role = replica;
UPDATE idem_policy SET ttl = '3 d';
SELECT pg_temp.next_ttl();
UPDATE idem_policy SET scope = 'elsewhere';
SELECT pg_temp.next_ttl();
TRUNCATE idem_policy;
INSERT INTO idem_policy VALUES ('policy', '4 d');
SELECT pg_temp.next_ttl();
TRUNCATE idem_policy;
RESET session_replication_role;
SELECT pg_temp.next_ttl();
-- many scopes
INSERT INTO idem_policy SELECT 'policy' || n, n * interval '1 h' FROM generate_series(1, 1000) n;
SELECT count(*) FROM generate_series(1, 1000) n, LATERAL idem_once('policy' || n, 'many') o WHERE o;
SELECT count(*) FROM idem_record WHERE key = 'many' AND ttl = substr(scope, 7)::int * interval '1 h';
DELETE FROM idem_policy;
SELECT pg_temp.next_ttl();

-- ---------------------------------------------------------------------------
-- Who may use a scope
-- ---------------------------------------------------------------------------
SET client_min_messages = warning;
CREATE ROLE regress_payer;
CREATE ROLE regress_payments;
CREATE ROLE regress_policy_operator;
RESET client_min_messages;
SELECT idem_grant('regress_payer');
SELECT idem_grant('regress_policy_operator', 'operator');
CREATE TEMP TABLE calls (n int, call text, statement text);
INSERT INTO calls VALUES
	(1, 'claim', 'SELECT * FROM idem_claim(''pay'', ''a'', lease => ''1 s'')'),
	(2, 'finish', 'SELECT idem_finish(''pay'', ''a'', token => gen_random_uuid())'),
	(3, 'lookup', 'SELECT * FROM idem_lookup(''pay'', ''a'')'),
	(4, 'extend', 'SELECT idem_extend(''pay'', ''a'', token => gen_random_uuid())'),
	(5, 'checkpoint', 'SELECT idem_checkpoint(''pay'', ''a'', token => gen_random_uuid(), checkpoint => ''c'')'),
	(6, 'assert', 'SELECT idem_assert(''pay'', ''a'', token => gen_random_uuid())'),
	(7, 'once', 'SELECT idem_once(''pay'', ''b'')'),
	(8, 'once_batch', 'SELECT idem_once_batch(''pay'', ''{b}'')'),
	(9, 'execute', 'SELECT * FROM idem_execute(''pay'', ''c'', command => ''SELECT 1'')'),
	(10, 'takeover', 'SELECT * FROM idem_takeover(''pay'', ''a'', lease => ''1 s'')'),
	(11, 'resolve', 'SELECT * FROM idem_resolve(''pay'', ''a'', state => ''failed'')'),
	(12, 'forget', 'SELECT idem_forget(''pay'', ''nothing'')');
GRANT SELECT ON calls TO PUBLIC;
-- Which calls a role is refused.
CREATE FUNCTION pg_temp.refused(_role text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	refused text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', _role);
	SELECT string_agg(call, ' ' ORDER BY n) INTO refused
	FROM calls c, LATERAL pg_temp.failing(c.statement) f WHERE f.code = '42501';
	RESET ROLE;
	DELETE FROM idem_record WHERE scope = 'pay';
	RETURN coalesce(refused, 'none');
END $$;

-- open as long as no role is named
INSERT INTO idem_policy (scope, ttl) VALUES ('pay', '1 d');
SELECT pg_temp.refused('regress_payer');
UPDATE idem_policy SET role = 'regress_payments';
SELECT pg_temp.refused('regress_payer');
-- an operator may do an operator's work in every scope, and no client's
SELECT pg_temp.refused('regress_policy_operator');
-- the whole message
SET ROLE regress_payer;
SELECT * FROM idem_lookup('pay', 'a');
SELECT outcome FROM idem_lookup('other', 'a');
RESET ROLE;
-- membership, as for any privilege: at once, inherited, until revoked
GRANT regress_payments TO regress_payer;
SELECT pg_temp.refused('regress_payer');
REVOKE regress_payments FROM regress_payer;
SELECT pg_temp.refused('regress_payer');
UPDATE idem_policy SET role = 'regress_payer';
SELECT pg_temp.refused('regress_payer');
-- the current user counts: a function that runs as its owner opens the scope
UPDATE idem_policy SET role = 'regress_payments';
CREATE FUNCTION regress_pay() RETURNS text LANGUAGE sql SECURITY DEFINER AS $$ SELECT outcome FROM idem_lookup('pay', 'a') $$;
SET ROLE regress_payer;
SELECT regress_pay();
RESET ROLE;
DROP FUNCTION regress_pay;
-- a superuser is a member of every role
SELECT pg_temp.refused(current_user);
-- a role that is gone closes the scope
ALTER ROLE regress_payments RENAME TO regress_billing;
GRANT regress_billing TO regress_payer;
SET ROLE regress_payer;
SELECT * FROM idem_lookup('pay', 'a');
RESET ROLE;
SELECT outcome FROM idem_lookup('pay', 'a');
ALTER ROLE regress_billing RENAME TO regress_payments;
SELECT pg_temp.refused('regress_payer');
REVOKE regress_payments FROM regress_payer;

-- who may read and change it: operators, and they cannot get round the triggers
CREATE TEMP TABLE attempts (n int, statement text);
INSERT INTO attempts VALUES
	(1, 'SELECT * FROM idem_policy'),
	(2, 'INSERT INTO idem_policy VALUES (''new'', ''1 h'')'),
	(3, 'UPDATE idem_policy SET role = NULL'),
	(4, 'DELETE FROM idem_policy WHERE scope = ''new'''),
	(5, 'TRUNCATE idem_policy'),
	(6, 'LOCK idem_policy IN ACCESS EXCLUSIVE MODE'),
	(7, 'ALTER TABLE idem_policy DISABLE TRIGGER idem_policy_changed'),
	(8, 'DROP TRIGGER idem_policy_changed ON idem_policy'),
	(9, 'CREATE TRIGGER t BEFORE INSERT ON idem_policy FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()'),
	(10, 'ALTER TABLE idem_policy ENABLE ROW LEVEL SECURITY'),
	(11, 'SET session_replication_role = replica'),
	(12, 'CREATE TABLE pg_temp.t (a int); CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION idem_policy_changed()');
GRANT SELECT ON attempts TO PUBLIC;
CREATE FUNCTION pg_temp.allowed(_role text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', _role);
	RETURN QUERY SELECT a.statement FROM attempts a, LATERAL pg_temp.failing(a.statement) f
		WHERE f.code <> '42501' ORDER BY n;
	RESET ROLE;
END $$;
SELECT pg_temp.allowed('regress_payer');
BEGIN;
SELECT pg_temp.allowed('regress_policy_operator');
ROLLBACK;
SELECT idem_revoke('regress_policy_operator', 'operator');
SELECT pg_temp.allowed('regress_policy_operator');
DROP OWNED BY regress_payer, regress_payments, regress_policy_operator;
DROP ROLE regress_payer, regress_payments, regress_policy_operator;

-- ---------------------------------------------------------------------------
-- What the table refuses, and what makes the calls refuse the table
-- ---------------------------------------------------------------------------
DELETE FROM idem_policy;
CREATE FUNCTION pg_temp.refused_by(_row text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	_name text;
BEGIN
	INSERT INTO idem_policy SELECT * FROM jsonb_populate_record(NULL::idem_policy, '{"scope": "s"}'::jsonb || _row::jsonb);
	DELETE FROM idem_policy;
	RETURN 'accepted';
EXCEPTION WHEN check_violation THEN
	GET STACKED DIAGNOSTICS _name = CONSTRAINT_NAME;
	RETURN _name;
END $$;
SELECT v, pg_temp.refused_by(v) FROM (VALUES ('{}'),
	('{"scope": ""}'), ('{"scope": "a\tb"}'), ('{"scope": "a\u007f"}'), ('{"scope": "ä Ö, (x)"}'),
	('{"ttl": "0"}'), ('{"ttl": "-1 s"}'), ('{"ttl": "0.000001 s"}'), ('{"ttl": "365250 days"}'), ('{"ttl": "365251 days"}'),
	('{"lease": "-1 s"}'), ('{"lease": "0"}'), ('{"lease": "365251 days"}'),
	('{"wait": "-1 s"}'), ('{"wait": "0"}'), ('{"wait": "365251 days"}'),
	('{"on_abandon": "retry"}'), ('{"on_abandon": "unknown"}'), ('{"on_abandon": "never"}'),
	('{"role": ""}'), ('{"role": "public"}'), ('{"role": "none"}'), ('{"role": "no such role"}')) t(v);
SELECT pg_temp.refused_by(format('{"scope": "%s"}', repeat('x', 255))), pg_temp.refused_by(format('{"scope": "%s"}', repeat('x', 256)));

-- Every client's call is refused after a change, and none once it is undone.
UPDATE calls SET statement = replace(statement, '''pay''', '''shape''');
CREATE FUNCTION pg_temp.with_change(change text, undo text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	r record;
BEGIN
	EXECUTE change;
	SELECT string_agg(call, ' ' ORDER BY n) AS calls, min(f.code) AS code, min(f.detail) AS detail INTO r
	FROM calls c, LATERAL pg_temp.failing(c.statement) f WHERE f.code IN ('0A000', '55000') AND f.message ~ 'table "idem_policy"';
	RETURN NEXT concat_ws(': ', r.code, r.detail, r.calls);
	EXECUTE undo;
	SELECT f.code INTO r FROM pg_temp.failing('SELECT * FROM idem_lookup(''shape'', ''a'')') f;
	IF r.code <> 'none' THEN
		RETURN NEXT 'refused with ' || r.code || ' after it was undone';
	END IF;
END $$;
SELECT pg_temp.with_change('ALTER TABLE idem_policy DISABLE TRIGGER idem_policy_changed', 'ALTER TABLE idem_policy ENABLE ALWAYS TRIGGER idem_policy_changed');
SELECT pg_temp.with_change('ALTER TABLE idem_policy ENABLE TRIGGER idem_policy_changed', 'ALTER TABLE idem_policy ENABLE ALWAYS TRIGGER idem_policy_changed');
SELECT pg_temp.with_change('ALTER TABLE idem_policy ENABLE REPLICA TRIGGER idem_policy_truncated', 'ALTER TABLE idem_policy ENABLE ALWAYS TRIGGER idem_policy_truncated');
-- what replaces a trigger: a condition, a column list, another function, another event
BEGIN;
CREATE OR REPLACE TRIGGER idem_policy_changed BEFORE INSERT OR UPDATE ON idem_policy FOR EACH ROW EXECUTE FUNCTION idem_policy_changed();
ALTER TABLE idem_policy ENABLE ALWAYS TRIGGER idem_policy_changed;
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_lookup(''shape'', ''a'')') f;
ROLLBACK;
BEGIN;
CREATE OR REPLACE TRIGGER idem_policy_changed BEFORE INSERT OR UPDATE OF ttl OR DELETE ON idem_policy FOR EACH ROW EXECUTE FUNCTION idem_policy_changed();
ALTER TABLE idem_policy ENABLE ALWAYS TRIGGER idem_policy_changed;
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_lookup(''shape'', ''a'')') f;
ROLLBACK;
BEGIN;
CREATE OR REPLACE TRIGGER idem_policy_truncated BEFORE TRUNCATE ON idem_policy FOR EACH STATEMENT WHEN (false) EXECUTE FUNCTION idem_policy_changed();
ALTER TABLE idem_policy ENABLE ALWAYS TRIGGER idem_policy_truncated;
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_lookup(''shape'', ''a'')') f;
ROLLBACK;
BEGIN;
CREATE OR REPLACE TRIGGER idem_policy_changed BEFORE INSERT OR UPDATE OR DELETE ON idem_policy FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
ALTER TABLE idem_policy ENABLE ALWAYS TRIGGER idem_policy_changed;
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_lookup(''shape'', ''a'')') f;
ROLLBACK;
SELECT outcome FROM idem_lookup('shape', 'a');
SELECT pg_temp.with_change('ALTER TABLE idem_policy ENABLE ROW LEVEL SECURITY', 'ALTER TABLE idem_policy DISABLE ROW LEVEL SECURITY');
SELECT pg_temp.with_change('ALTER TABLE idem_policy FORCE ROW LEVEL SECURITY', 'ALTER TABLE idem_policy NO FORCE ROW LEVEL SECURITY');
SELECT pg_temp.with_change('ALTER TABLE idem_policy RENAME wait TO patience', 'ALTER TABLE idem_policy RENAME patience TO wait');
SELECT pg_temp.with_change('ALTER TABLE idem_policy ALTER role TYPE text', 'ALTER TABLE idem_policy ALTER role TYPE name');
SELECT pg_temp.with_change('ALTER TABLE idem_policy SET UNLOGGED', 'ALTER TABLE idem_policy SET LOGGED');
SELECT pg_temp.with_change('ALTER TABLE idem_policy RENAME TO regress_policy', 'ALTER TABLE regress_policy RENAME TO idem_policy');
CREATE TABLE regress_child () INHERITS (idem_policy);
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_lookup(''shape'', ''a'')') f;
DROP TABLE regress_child;
SELECT outcome FROM idem_lookup('shape', 'a');

-- what does no harm: an audit's trigger, a column and a constraint of one's own
CREATE TABLE regress_audit (was text, now text);
CREATE FUNCTION regress_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO regress_audit VALUES (OLD.ttl, NEW.ttl);
	RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON idem_policy FOR EACH ROW EXECUTE FUNCTION regress_audit();
ALTER TABLE idem_policy ADD COLUMN team text DEFAULT 'payments', ADD CONSTRAINT regress_short CHECK (lease < interval '1 h');
SELECT pg_temp.next_ttl();
INSERT INTO idem_policy (scope, ttl) VALUES ('policy', '8 d');
SELECT pg_temp.next_ttl();
SELECT * FROM regress_audit;
DROP TRIGGER audit ON idem_policy;
ALTER TABLE idem_policy DROP COLUMN team, DROP CONSTRAINT regress_short;
DROP FUNCTION regress_audit;
DROP TABLE regress_audit;
SELECT pg_temp.next_ttl();

-- it moves with the extension, and a new one starts empty
CREATE SCHEMA regress_policy;
ALTER EXTENSION idempotency SET SCHEMA regress_policy;
SELECT regress_policy.idem_once('policy', 'moved');
SELECT ttl FROM regress_policy.idem_record WHERE key = 'moved';
UPDATE regress_policy.idem_policy SET ttl = '10 d';
SELECT regress_policy.idem_once('policy', 'moved 2');
SELECT ttl FROM regress_policy.idem_record WHERE key = 'moved 2';
ALTER EXTENSION idempotency SET SCHEMA public;
DROP SCHEMA regress_policy;
DROP EXTENSION idempotency;
CREATE EXTENSION idempotency;
SELECT idem_once('policy', 'anew');
SELECT ttl FROM idem_record WHERE key = 'anew';

-- it is no function to call
SELECT f.code FROM pg_temp.failing('SELECT idem_policy_changed()') f;
