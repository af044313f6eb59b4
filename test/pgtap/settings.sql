--
-- The settings: names, defaults, units, ranges, and who may set them when.
--
\set ON_ERROR_STOP on
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;

SELECT plan(3);

-- a call loads the library, which defines them
SELECT is(outcome, 'absent', 'loaded') FROM idem_lookup('pgtap', 'settings');
SELECT results_eq(
	$$SELECT name, vartype, boot_val, unit, min_val, max_val, enumvals::text, context
		FROM pg_settings WHERE name LIKE 'idempotency.%' ORDER BY name$$,
	$$VALUES
		('idempotency.durable_claims', 'bool', 'on', NULL, NULL, NULL, NULL, 'user'),
		('idempotency.lease', 'integer', '0', 'ms', '0', '2147483647', NULL, 'user'),
		('idempotency.max_response', 'integer', (64 * 1024 * 1024)::text, 'B', '0', (255 * 1024 * 1024)::text, NULL, 'user'),
		('idempotency.on_abandon', 'enum', 'unknown', NULL, NULL, NULL, '{unknown,retry}', 'user'),
		('idempotency.once_ttl', 'integer', (30 * 24 * 60 * 60)::text, 's', '1', '2147483647', NULL, 'user'),
		('idempotency.ttl', 'integer', (24 * 60 * 60)::text, 's', '1', '2147483647', NULL, 'user'),
		('idempotency.wait', 'integer', '0', 'ms', '0', '2147483647', NULL, 'user')$$,
	'the settings');
SELECT is_empty($$SELECT name FROM pg_settings WHERE name LIKE 'idempotency.%' AND coalesce(short_desc, '') = ''$$, 'each is described');

SELECT * FROM finish();
ROLLBACK;
