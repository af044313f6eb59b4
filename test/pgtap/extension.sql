--
-- The extension as a whole: how it is installed, what it consists of, who may
-- use it, and that everything is described.
--
\set ON_ERROR_STOP on
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;

SELECT plan(22);

SELECT has_extension('idempotency');
SELECT is(relocatable, true, 'relocatable') FROM pg_available_extension_versions WHERE name = 'idempotency' AND installed;
SELECT is(trusted, false, 'not trusted: its C code bypasses the executor') FROM pg_available_extension_versions WHERE name = 'idempotency' AND installed;
SELECT is(superuser, true, 'installed by a superuser') FROM pg_available_extension_versions WHERE name = 'idempotency' AND installed;
SELECT is(requires, NULL, 'requires no other extension') FROM pg_available_extension_versions WHERE name = 'idempotency' AND installed;
SELECT is(extversion, default_version, 'installed in its default version')
FROM pg_extension JOIN pg_available_extensions ON name = extname WHERE extname = 'idempotency';

-- what it consists of
CREATE TEMP VIEW member AS
SELECT d.classid, d.objid, i.type, i.identity, i.schema
FROM pg_extension e
	JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e',
	LATERAL pg_identify_object(d.classid, d.objid, 0) i
WHERE e.extname = 'idempotency';
SELECT results_eq(
	$$SELECT type, count(*)::int FROM member WHERE type <> 'type' GROUP BY type ORDER BY type$$,
	$$VALUES ('function', 18), ('procedure', 1), ('table', 2), ('view', 5)$$,
	'two tables, five views, a procedure and eighteen functions');
SELECT is(array_agg(DISTINCT m.schema::text), array_agg(DISTINCT e.extnamespace::regnamespace::text), 'all in one schema')
FROM member m, pg_extension e WHERE e.extname = 'idempotency' AND m.type <> 'type';
SELECT is_empty($$SELECT identity FROM member WHERE type IN ('operator', 'operator class', 'cast', 'event trigger', 'language')$$,
	'nothing that acts on anybody who does not call it');
SELECT is_empty(
	$$SELECT m.identity FROM member m LEFT JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
			LEFT JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
		WHERE coalesce(c.relname, p.proname) !~ '^idem_'$$,
	'every name begins with idem_');

-- descriptions
SELECT is_empty($$SELECT identity FROM member WHERE type <> 'type' AND obj_description(objid, classid::regclass::name) IS NULL$$,
	'every object has a comment');
SELECT is_empty(
	$$SELECT m.identity || '.' || a.attname FROM member m LEFT JOIN pg_type t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid
			JOIN pg_attribute a ON a.attrelid = CASE m.classid WHEN 'pg_class'::regclass THEN m.objid ELSE t.typrelid END
		WHERE a.attnum > 0 AND NOT a.attisdropped AND col_description(a.attrelid, a.attnum) IS NULL$$,
	'every column has a comment');
SELECT is_empty(
	$$SELECT conname FROM pg_constraint WHERE conrelid IN ('idem_record'::regclass, 'idem_policy'::regclass) AND contype <> 'n' AND obj_description(oid, 'pg_constraint') IS NULL$$,
	'every constraint has a comment');
SELECT is_empty(
	$$SELECT tgname FROM pg_trigger WHERE tgrelid = 'idem_policy'::regclass AND obj_description(oid, 'pg_trigger') IS NULL$$,
	'every trigger has a comment');
SELECT is_empty(
	$$SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'idem_record'::regclass AND NOT indisprimary AND obj_description(indexrelid, 'pg_class') IS NULL$$,
	'every index has a comment');
SELECT isnt(obj_description(oid, 'pg_extension'), NULL, 'so has the extension') FROM pg_extension WHERE extname = 'idempotency';

-- PUBLIC: by the catalog, so that no membership of the role that runs this
-- hides anything
SELECT set_eq(
	$$SELECT p.proname::text FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid,
			LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
		WHERE a.grantee = 0 AND a.privilege_type = 'EXECUTE'$$,
	ARRAY['idem_fingerprint'],
	'PUBLIC can compute fingerprints and call nothing else');
SELECT is_empty(
	$$SELECT c.relname, a.privilege_type FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid,
			LATERAL aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
		WHERE a.grantee = 0$$,
	'PUBLIC has no right on a table or a view');
SELECT is_empty(
	$$SELECT a.attname FROM pg_attribute a WHERE a.attrelid IN ('idem_record'::regclass, 'idem_policy'::regclass, 'idem_lease'::regclass, 'idem_unresolved'::regclass, 'idem_health'::regclass) AND a.attacl IS NOT NULL$$,
	'nor on a column');

-- the three sets, in words
SELECT set_eq($$SELECT regexp_replace(s, '^(EXECUTE|SELECT|SELECT, INSERT, UPDATE, DELETE) ON (FUNCTION|PROCEDURE|TABLE) (.*\.)?(\w+).*$', '\4') FROM idem_privilege_set('client') s$$,
	'{idem_claim,idem_finish,idem_lookup,idem_extend,idem_checkpoint,idem_assert,idem_once,idem_once_batch,idem_execute,idem_fingerprint}'::text[],
	'client');
SELECT set_eq($$SELECT regexp_replace(s, '^(EXECUTE|SELECT|SELECT, INSERT, UPDATE, DELETE) ON (FUNCTION|PROCEDURE|TABLE) (.*\.)?(\w+).*$', '\4') FROM idem_privilege_set('monitor') s$$,
	'{idem_unresolved,idem_health,idem_stats,idem_report}'::text[],
	'monitor');
SELECT set_eq($$SELECT regexp_replace(s, '^(EXECUTE|SELECT|SELECT, INSERT, UPDATE, DELETE) ON (FUNCTION|PROCEDURE|TABLE) (.*\.)?(\w+).*$', '\4') FROM idem_privilege_set('operator') s$$,
	'{idem_claim,idem_finish,idem_lookup,idem_extend,idem_checkpoint,idem_assert,idem_once,idem_once_batch,idem_execute,idem_fingerprint,idem_unresolved,idem_health,idem_stats,idem_report,idem_sweep,idem_sweep_all,idem_takeover,idem_resolve,idem_forget,idem_policy}'::text[],
	'operator: both, and sweep, takeover, resolve, forget, and the policies');

SELECT * FROM finish();
ROLLBACK;
