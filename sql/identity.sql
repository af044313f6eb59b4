--
-- The identity of a request: scope, key and principal, byte for byte.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- one unique index, and it is on exactly the identity
SELECT indnkeyatts, indnatts, (SELECT string_agg(pg_get_indexdef(indexrelid, n, false), ', ' ORDER BY n) FROM generate_series(1, indnatts) n)
FROM pg_index
WHERE indrelid = 'idem_record'::regclass AND indisunique;

-- the same key of other principals and scopes is another record, and no
-- answer of one is told to the other
BEGIN;
SELECT outcome FROM idem_claim('identity', 'k', 'alice', request => '1');
SELECT idem_finish('identity', 'k', 'alice', response_code => 200, response_body => 'of alice');
SELECT c.outcome, c.response_body FROM idem_claim('identity', 'k', 'bob', request => '1') c;
SELECT idem_finish('identity', 'k', 'bob', response_code => 200, response_body => 'of bob');
SELECT c.outcome, c.response_body FROM idem_claim('identity 2', 'k', 'alice', request => '1') c;
SELECT idem_finish('identity 2', 'k', 'alice', response_code => 200, response_body => 'of alice, 2');
SELECT c.outcome, c.response_body FROM idem_claim('identity', 'k', request => '1') c;
SELECT idem_finish('identity', 'k', response_code => 200, response_body => 'of nobody');
COMMIT;
SELECT w.scope, w.principal, c.outcome, c.response_body, l.response_body
FROM (VALUES ('identity', 'alice'), ('identity', 'bob'), ('identity', ''), ('identity 2', 'alice')) w(scope, principal),
	LATERAL idem_claim(w.scope, 'k', w.principal, request => '1') c,
	LATERAL idem_lookup(w.scope, 'k', w.principal) l;
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('identity 2', 'k', 'bob') l;
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('identity 2', 'k') l;

-- no call of one reaches the record of the other
SELECT idem_forget('identity 2', 'k', 'bob'), idem_forget('identity 2', 'k');
SELECT r.outcome FROM idem_resolve('identity 2', 'k', 'bob', state => 'failed', force => true) r;
SELECT r.outcome FROM idem_takeover('identity 2', 'k', force => true) r;
SELECT idem_forget('identity', 'k', 'bob');
SELECT principal FROM idem_record WHERE (scope, key) = ('identity', 'k') ORDER BY principal;

-- left out, a principal is the empty one
SELECT outcome, response_body FROM idem_lookup('identity', 'k', '');
SELECT f.code, f.argument FROM pg_temp.failing('SELECT * FROM idem_lookup(''identity'', ''k'', NULL)') f;

-- nothing of one identity runs over into the next
SELECT c.outcome, v.* FROM (VALUES ('a', 'bc', ''), ('ab', 'c', ''), ('a', 'b', 'c'), ('abc', 'a', 'bc')) v(scope, key, principal),
	LATERAL idem_claim(v.scope, v.key, v.principal, lease => '1 hour') c;

-- what only looks alike: case, composed and decomposed accents, blanks, width,
-- a soft hyphen; each is itself and nobody else, whatever the database's locale
CREATE TEMP TABLE alike (n int, key text);
INSERT INTO alike VALUES
	(1, 'caf' || E'\xc3\xa9'), (2, 'cafe' || E'\xcc\x81'), (3, 'Caf' || E'\xc3\xa9'), (4, 'cafe'),
	(5, 'cafe '), (6, ' cafe'), (7, 'cafe' || E'\xc2\xa0'), (8, 'ca' || E'\xc2\xad' || 'fe'),
	(9, 'CAFE'), (10, E'\xef\xbd\x83' || 'afe'), (11, 'cafe' || E'\xe2\x80\x8b'),
	(12, 'stra' || E'\xc3\x9f' || 'e'), (13, 'strasse'), (14, 'I'), (15, E'\xc4\xb0'), (16, 'i'), (17, E'\xc4\xb1'),
	(18, '007'), (19, '7'), (20, '7.0');
SELECT count(*) FILTER (WHERE c.outcome = 'claimed') AS claimed, count(*) AS of
FROM alike a, LATERAL idem_claim('alike', a.key, lease => '1 hour') c;
SELECT count(*) FILTER (WHERE c.outcome = 'in_progress') AS in_progress
FROM alike a, LATERAL idem_claim('alike', a.key, lease => '1 hour') c;
SELECT idem_finish('alike', a.key, token => r.token, response_code => a.n)
FROM alike a JOIN idem_record r ON r.scope = 'alike' AND r.key = a.key WHERE a.n = 2;
SELECT a.n, l.outcome, l.response_code FROM alike a, LATERAL idem_lookup('alike', a.key) l WHERE l.outcome <> 'in_progress';
SELECT count(*) FILTER (WHERE c.outcome = 'claimed') AS as_principal
FROM alike a, LATERAL idem_claim('alike', 'k', a.key, lease => '1 hour') c;
SELECT count(*) FILTER (WHERE c.outcome = 'claimed') AS as_scope
FROM alike a, LATERAL idem_claim(a.key, 'alike', lease => '1 hour') c;
SELECT count(*) FILTER (WHERE idem_once('once alike', a.key)) AS as_message FROM alike a;

-- what an identity may be
SELECT outcome FROM idem_claim('identity', '{"key": 1}', 'me{', lease => '1 hour');
SELECT outcome FROM idem_claim('identity', ' ', ' {', lease => '1 hour');
SELECT outcome FROM idem_claim('identity', E'\xc2\x80', '"', lease => '1 hour');
SELECT outcome FROM idem_claim('identity', '''; DROP TABLE idem_record; --', '%s\', lease => '1 hour');
SELECT quote_literal(key), quote_literal(principal) FROM idem_record WHERE scope = 'identity' AND key ~ '^[''{ ]' ORDER BY key;

DELETE FROM idem_record WHERE scope IN ('identity', 'identity 2', 'alike', 'once alike', 'a', 'ab', 'abc') OR key = 'alike';
SELECT count(*) FROM idem_record;
