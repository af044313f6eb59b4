--
-- Who may call what: idem_grant, idem_revoke and the three privilege sets.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

SET client_min_messages = warning;
CREATE ROLE regress_nothing;
CREATE ROLE regress_client;
CREATE ROLE regress_monitor;
CREATE ROLE regress_operator;
CREATE ROLE "regress ""Odd"" one";
RESET client_min_messages;

-- What a role may do.  The calls themselves are made, in a subtransaction; an
-- error other than 42501 comes after the check of the privilege.
CREATE TABLE regress_calls (n int, object text, statement text);
INSERT INTO regress_calls VALUES
	(1, 'claim', 'SELECT * FROM idem_claim(''privileges'', '''')'),
	(2, 'finish', 'SELECT idem_finish(''privileges'', '''')'),
	(3, 'lookup', 'SELECT * FROM idem_lookup(''privileges'', '''')'),
	(4, 'extend', 'SELECT idem_extend(''privileges'', '''')'),
	(5, 'checkpoint', 'SELECT idem_checkpoint(''privileges'', '''')'),
	(6, 'assert', 'SELECT idem_assert(''privileges'', '''')'),
	(7, 'once', 'SELECT idem_once(''privileges'', '''')'),
	(8, 'once_batch', 'SELECT idem_once_batch(''privileges'', ''{""}'')'),
	(9, 'execute', 'SELECT * FROM idem_execute(''privileges'', '''', command => ''SELECT 1'')'),
	(10, 'fingerprint', 'SELECT idem_fingerprint(''1'')'),
	(11, 'sweep', 'SELECT * FROM idem_sweep(0)'),
	(12, 'sweep_all', 'CALL idem_sweep_all(0)'),
	(13, 'takeover', 'SELECT * FROM idem_takeover(''privileges'', '''')'),
	(14, 'resolve', 'SELECT * FROM idem_resolve(''privileges'', '''', state => ''failed'')'),
	(15, 'forget', 'SELECT idem_forget(''privileges'', '''')'),
	(16, 'unresolved', 'SELECT * FROM idem_unresolved'),
	(17, 'health', 'SELECT * FROM idem_health'),
	(17, 'stats', 'SELECT * FROM idem_stats'),
	(17, 'report', 'SELECT * FROM idem_report'),
	(31, 'lease', 'SELECT * FROM idem_lease'),
	(18, 'record', 'SELECT * FROM idem_record'),
	(19, 'record', 'INSERT INTO idem_record (scope) VALUES (NULL)'),
	(20, 'record', 'UPDATE idem_record SET state = ''x'''),
	(21, 'record', 'DELETE FROM idem_record'),
	(22, 'record', 'TRUNCATE idem_record'),
	(26, 'policy', 'SELECT * FROM idem_policy'),
	(27, 'policy', 'INSERT INTO idem_policy (scope) VALUES (NULL)'),
	(28, 'policy', 'UPDATE idem_policy SET scope = NULL'),
	(29, 'policy', 'DELETE FROM idem_policy'),
	(30, 'policy', 'TRUNCATE idem_policy'),
	(23, 'grant', 'SELECT idem_grant(''regress_nothing'', ''x'')'),
	(24, 'revoke', 'SELECT idem_revoke(''regress_nothing'', ''x'')'),
	(25, 'privilege_set', 'SELECT idem_privilege_set(''x'')');
GRANT SELECT ON regress_calls TO PUBLIC;
CREATE FUNCTION regress_allowed(_role text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r record;
	allowed text := '';
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', _role);
	FOR r IN SELECT * FROM regress_calls ORDER BY n, object COLLATE "C" LOOP
		BEGIN
			EXECUTE r.statement;
			allowed := allowed || ' ' || r.object;
		EXCEPTION
			WHEN insufficient_privilege THEN
				NULL;
			WHEN OTHERS THEN
				allowed := allowed || ' ' || r.object;
		END;
	END LOOP;
	RESET ROLE;
	RETURN allowed;
END $$;

-- a fresh install: fingerprints and nothing else
SELECT regress_allowed('regress_nothing');

-- each set is exactly what it says
SELECT idem_grant('regress_client');
SELECT regress_allowed('regress_client');
SELECT idem_grant('regress_monitor', 'monitor');
SELECT regress_allowed('regress_monitor');
SELECT idem_grant('regress_operator', 'operator');
SELECT regress_allowed('regress_operator');
SELECT regress_allowed('regress_nothing');

-- granting twice, granting more, granting by name of an odd role
SELECT idem_grant('regress_client', 'client'), idem_grant('regress_client', 'monitor');
SELECT regress_allowed('regress_client');
SELECT idem_grant('"regress ""Odd"" one"', privilege => 'monitor');
SELECT regress_allowed('regress "Odd" one');
SELECT idem_revoke('"regress ""Odd"" one"', 'monitor');
SELECT regress_allowed('regress "Odd" one');

-- revoking a set takes what it names
SELECT idem_revoke('regress_client', 'monitor');
SELECT regress_allowed('regress_client');
SELECT idem_revoke('regress_operator', 'client');
SELECT regress_allowed('regress_operator');
SELECT idem_revoke('regress_operator', 'operator');
SELECT regress_allowed('regress_operator');
SELECT idem_revoke('regress_nothing');

-- a member of a role has what the role has
GRANT regress_monitor TO regress_nothing;
SELECT regress_allowed('regress_nothing');
REVOKE regress_monitor FROM regress_nothing;

-- bad names: an error that names the argument, and nothing granted
SELECT f.* FROM pg_temp.failing('SELECT idem_grant(''regress_nothing'', ''superuser'')') f;
SELECT f.code, f.argument FROM pg_temp.failing('SELECT idem_revoke(''regress_nothing'', NULL)') f;
SELECT f.code, f.argument FROM pg_temp.failing('SELECT idem_grant(NULL)') f;
SELECT f.code, f.argument FROM pg_temp.failing('SELECT idem_grant(4294967295::oid::regrole)') f;
SELECT f.code, f.argument FROM pg_temp.failing('SELECT idem_revoke(4294967295::oid::regrole)') f;
SELECT f.code FROM pg_temp.failing('SELECT idem_grant(''regress_no_such_role'')') f;

-- the two run with the caller's rights: who cannot grant, grants nothing
GRANT EXECUTE ON FUNCTION idem_grant, idem_privilege_set TO regress_client;
SET client_min_messages = error;
SET ROLE regress_client;
SELECT f.code FROM pg_temp.failing('SELECT idem_grant(''regress_nothing'', ''client'')') f;
SELECT f.code FROM pg_temp.failing('SELECT idem_grant(''regress_nothing'', ''operator'')') f;
RESET ROLE;
RESET client_min_messages;
REVOKE EXECUTE ON FUNCTION idem_grant, idem_privilege_set FROM regress_client;
SELECT regress_allowed('regress_nothing');

-- a client calls for real, does not see the table, and names any principal
SET ROLE regress_client;
BEGIN;
SELECT outcome FROM idem_claim('privileges', 'a', 'me', request => '1');
SELECT idem_finish('privileges', 'a', 'me', response_code => 200, response_body => 'ok');
COMMIT;
SELECT outcome, response_body FROM idem_claim('privileges', 'a', 'me', request => '1');
SELECT idem_once('privileges', 'b');
SELECT * FROM idem_once_batch('privileges', '{b,c}');
SELECT outcome FROM idem_claim('privileges', 'd', lease => '1 hour');
SELECT count(*) FROM idem_record;
RESET ROLE;
UPDATE idem_record SET lease_expires_at = now() WHERE scope = 'privileges' AND key = 'd';
SET ROLE regress_monitor;
SELECT key FROM idem_unresolved;
SELECT unresolved FROM idem_health;
RESET ROLE;

-- idem_execute runs the command as its caller
CREATE TABLE regress_secret (n int);
SET ROLE regress_client;
SELECT outcome, response_body FROM idem_execute('privileges', 'e', command => 'SELECT current_user');
SELECT f.code, f.message FROM pg_temp.failing('SELECT * FROM idem_execute(''privileges'', ''f'', command => ''SELECT n FROM regress_secret'')') f;
RESET ROLE;
-- also when the plan is one that another role has made
SELECT outcome FROM idem_execute('privileges', 'f', command => 'SELECT n FROM regress_secret');
SET ROLE regress_client;
SELECT f.code, f.message FROM pg_temp.failing('SELECT * FROM idem_execute(''privileges'', ''g'', command => ''SELECT n FROM regress_secret'')') f;
SELECT outcome FROM idem_lookup('privileges', 'g');
RESET ROLE;
DROP TABLE regress_secret;

-- objects of the same name elsewhere are never called
CREATE SCHEMA regress_trap;
CREATE TABLE regress_trap.idem_record (LIKE idem_record);
CREATE FUNCTION regress_trap.octet_length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION regress_trap.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION regress_trap.equal(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE OPERATOR regress_trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = regress_trap.equal);
CREATE FUNCTION regress_trap.format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION regress_trap.idem_privilege_set(text) RETURNS SETOF text LANGUAGE sql AS $$ SELECT 'ALL ON TABLE regress_calls' $$;
SELECT extnamespace::regnamespace AS ext FROM pg_extension WHERE extname = 'idempotency' \gset
SET search_path = regress_trap, pg_catalog, :ext;
SELECT outcome FROM idem_claim('privileges', 'trap', lease => '1 hour');
SELECT outcome FROM idem_lookup('privileges', 'trap');
SELECT idem_once('privileges', 'trap once');
SELECT unresolved FROM idem_sweep();
SELECT unresolved FROM idem_health;
SELECT idem_grant('regress_nothing', 'monitor');
SELECT idem_revoke('regress_nothing', 'monitor');
SELECT idem_forget('privileges', 'trap');
SELECT count(*) FROM regress_trap.idem_record;
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA regress_trap CASCADE;
RESET client_min_messages;

-- the privileges go with the role
SELECT idem_revoke('regress_client'), idem_revoke('regress_monitor', 'monitor');
SELECT count(*) FROM pg_extension e JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
	JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid, aclexplode(p.proacl) a
WHERE e.extname = 'idempotency' AND a.grantee::regrole::text ~ 'regress';
DROP FUNCTION regress_allowed;
DROP TABLE regress_calls;
DROP OWNED BY regress_nothing, regress_client, regress_monitor, regress_operator, "regress ""Odd"" one";
DROP ROLE regress_nothing, regress_client, regress_monitor, regress_operator, "regress ""Odd"" one";
DELETE FROM idem_record WHERE scope = 'privileges';
