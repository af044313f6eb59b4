--
-- The catalog contract of the functions: names, arguments with types, order
-- and defaults, result columns, and what the planner may assume.
--
\set ON_ERROR_STOP on
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
SET LOCAL intervalstyle = postgres;

CREATE TEMP VIEW member AS
SELECT p.*, p.proname::text AS name
FROM pg_extension e
	JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
	JOIN pg_proc p ON p.oid = d.objid
WHERE e.extname = 'idempotency';

SELECT plan(5 + 7 * 19);

CREATE TEMP TABLE contract (name text, arguments text, result text);
INSERT INTO contract VALUES
('idem_claim',
 'scope text, key text, principal text DEFAULT ''''::text, request jsonb DEFAULT NULL::jsonb, fingerprint bytea DEFAULT NULL::bytea, ttl interval DEFAULT NULL::interval, lease interval DEFAULT NULL::interval, wait interval DEFAULT NULL::interval, on_abandon text DEFAULT NULL::text, claim_token uuid DEFAULT NULL::uuid',
 'idem_claim_row'),
('idem_finish',
 'scope text, key text, principal text DEFAULT ''''::text, token uuid DEFAULT NULL::uuid, state text DEFAULT ''succeeded''::text, response_code integer DEFAULT NULL::integer, response_body text DEFAULT NULL::text, response_headers jsonb DEFAULT NULL::jsonb, response_bytes bytea DEFAULT NULL::bytea, ttl interval DEFAULT NULL::interval',
 'boolean'),
('idem_lookup',
 'scope text, key text, principal text DEFAULT ''''::text',
 'idem_lookup_row'),
('idem_sweep',
 'max_rows integer DEFAULT 1000, OUT deleted bigint, OUT unresolved bigint, OUT more boolean',
 'record'),
('idem_sweep_all',
 'IN batch integer DEFAULT 1000, IN pause interval DEFAULT ''00:00:00''::interval',
 NULL),
('idem_extend',
 'scope text, key text, principal text DEFAULT ''''::text, token uuid DEFAULT NULL::uuid, lease interval DEFAULT NULL::interval',
 'timestamp with time zone'),
('idem_checkpoint',
 'scope text, key text, principal text DEFAULT ''''::text, token uuid DEFAULT NULL::uuid, checkpoint text DEFAULT NULL::text, checkpoint_data jsonb DEFAULT NULL::jsonb, on_abandon text DEFAULT NULL::text, lease interval DEFAULT NULL::interval',
 'timestamp with time zone'),
('idem_assert',
 'scope text, key text, principal text DEFAULT ''''::text, token uuid DEFAULT NULL::uuid',
 'void'),
('idem_takeover',
 'scope text, key text, principal text DEFAULT ''''::text, lease interval DEFAULT NULL::interval, wait interval DEFAULT NULL::interval, force boolean DEFAULT false',
 'idem_claim_row'),
('idem_resolve',
 'scope text, key text, principal text DEFAULT ''''::text, state text DEFAULT NULL::text, response_code integer DEFAULT NULL::integer, response_body text DEFAULT NULL::text, response_headers jsonb DEFAULT NULL::jsonb, response_bytes bytea DEFAULT NULL::bytea, ttl interval DEFAULT NULL::interval, force boolean DEFAULT false',
 'idem_lookup_row'),
('idem_forget',
 'scope text, key text, principal text DEFAULT ''''::text',
 'boolean'),
('idem_once',
 'scope text, key text, principal text DEFAULT ''''::text, ttl interval DEFAULT NULL::interval',
 'boolean'),
('idem_once_batch',
 'scope text, keys text[], principal text DEFAULT ''''::text, ttl interval DEFAULT NULL::interval',
 'SETOF text'),
('idem_execute',
 'scope text, key text, principal text DEFAULT ''''::text, request jsonb DEFAULT NULL::jsonb, command text DEFAULT NULL::text, ttl interval DEFAULT NULL::interval, wait interval DEFAULT NULL::interval',
 'idem_claim_row'),
('idem_fingerprint', 'request jsonb', 'bytea'),
('idem_grant', 'grantee regrole, privilege text DEFAULT ''client''::text', 'void'),
('idem_revoke', 'grantee regrole, privilege text DEFAULT ''client''::text', 'void'),
('idem_privilege_set', 'privilege text', 'SETOF text'),
('idem_policy_changed', '', 'trigger');

SELECT set_eq('SELECT name FROM member', 'SELECT name FROM contract', 'the functions and procedures are these');
SELECT is(count(*), count(DISTINCT name), 'none is overloaded, so that named arguments are never ambiguous') FROM member;
SELECT is(prokind, 'p'::"char", 'idem_sweep_all is a procedure') FROM member WHERE name = 'idem_sweep_all';

SELECT is(pg_get_function_arguments(m.oid), c.arguments, c.name || ': arguments, types, order and defaults')
FROM contract c LEFT JOIN member m USING (name) ORDER BY c.name;
SELECT is(pg_get_function_result(m.oid), c.result, c.name || ': result')
FROM contract c LEFT JOIN member m USING (name) ORDER BY c.name;
SELECT is(m.provolatile, CASE c.name WHEN 'idem_fingerprint' THEN 'i' WHEN 'idem_privilege_set' THEN 's' ELSE 'v' END::"char", c.name || ': volatility')
FROM contract c LEFT JOIN member m USING (name) ORDER BY c.name;
SELECT is(m.proparallel, CASE WHEN c.name IN ('idem_fingerprint', 'idem_privilege_set') THEN 's' ELSE 'u' END::"char", c.name || ': parallel safety')
FROM contract c LEFT JOIN member m USING (name) ORDER BY c.name;
SELECT is(m.proisstrict, c.name = 'idem_fingerprint', c.name || ': a NULL argument is ' || CASE c.name WHEN 'idem_fingerprint' THEN 'a NULL result' ELSE 'checked' END)
FROM contract c LEFT JOIN member m USING (name) ORDER BY c.name;
SELECT is(m.prosecdef, false, c.name || ' runs with the rights of its caller')
FROM contract c LEFT JOIN member m USING (name) ORDER BY c.name;
-- SQL text is written in PL/pgSQL only where names are found by a fixed path
SELECT ok(CASE WHEN l.lanname = 'c' THEN m.proconfig IS NULL AND m.prosrc = m.name
	ELSE 'search_path=pg_catalog, pg_temp' = ANY (m.proconfig) END, c.name || ': no name is looked up by the caller''s search_path')
FROM contract c LEFT JOIN member m USING (name) LEFT JOIN pg_language l ON l.oid = m.prolang ORDER BY c.name;

CREATE FUNCTION pg_temp.columns_of(rowtype regtype) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
	FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
	WHERE t.oid = rowtype AND NOT a.attisdropped
$$;
SELECT is(pg_temp.columns_of('idem_claim_row'),
	'outcome text, state text, token uuid, attempt integer, recovered boolean, checkpoint text, checkpoint_data jsonb, response_code integer, response_body text, response_headers jsonb, response_bytes bytea, lease_expires_at timestamp with time zone, expires_at timestamp with time zone',
	'idem_claim_row: columns, types and order');
SELECT is(pg_temp.columns_of('idem_lookup_row'),
	'outcome text, state text, attempt integer, checkpoint text, checkpoint_data jsonb, response_code integer, response_body text, response_headers jsonb, response_bytes bytea, lease_expires_at timestamp with time zone, expires_at timestamp with time zone',
	'idem_lookup_row: columns, types and order');

SELECT * FROM finish();
ROLLBACK;
