--
-- Where a claim may stand in a query.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- (f(...)).* becomes one call for each column: the first would claim and the
-- others would lose the token.  Refused, and nothing is claimed.
SELECT (idem_claim('list', 'a', lease => '1 hour')).*;
\echo :LAST_ERROR_SQLSTATE
SELECT outcome FROM idem_lookup('list', 'a');
SELECT (idem_claim('list', k, lease => '1 hour')).* FROM unnest('{a,b}'::text[]) k;
SELECT c.* FROM (SELECT (idem_claim('list', 'a', lease => '1 hour')).*) c;
SELECT (idem_claim('list', 'a', lease => '1 hour')).outcome, (idem_claim('list', 'a', lease => '1 hour')).token;
SELECT outcome FROM idem_lookup('list', 'a');

-- the same for a takeover
SELECT outcome FROM idem_claim('list', 'live', lease => '1 hour');
SELECT (idem_takeover('list', 'live', lease => '1 hour', force => true)).*;
\echo :LAST_ERROR_SQLSTATE
SELECT attempt FROM idem_lookup('list', 'live');

-- in a savepoint the transaction goes on
BEGIN;
SAVEPOINT s;
SELECT (idem_claim('list', 'a')).*;
ROLLBACK TO s;
SELECT outcome FROM idem_claim('list', 'a');
SELECT idem_finish('list', 'a', response_code => 200, response_body => 'ok');
COMMIT;

-- what has nothing to lose is answered: each column of one replay
SELECT pg_temp.seen(to_jsonb(r)) FROM (SELECT (idem_claim('list', 'a')).*) r;
SELECT (idem_lookup('list', 'a')).outcome, (idem_lookup('list', 'a')).response_body;
-- and a repeated claim of one claim_token
SELECT pg_temp.seen(to_jsonb(r)) FROM (SELECT (idem_claim('list', 'b', lease => '1 hour', claim_token => '00000000-0000-4000-8000-000000000001')).*) r;
-- and a command, which runs once
CREATE TEMP SEQUENCE runs;
SELECT response_body, response_code FROM (SELECT (idem_execute('list', 'c', command => 'SELECT nextval(''runs''), 200')).*) r;
SELECT last_value FROM runs;

-- one call for a row: in FROM, in a plain target list, in a subquery
SELECT outcome, token IS NOT NULL AS token FROM idem_claim('list', 'd', lease => '1 hour');
SELECT idem_claim('list', 'e', lease => '1 hour') IS NOT NULL AS row;
SELECT (idem_claim('list', 'f', lease => '1 hour')).outcome;
SELECT (c).outcome, (c).token IS NOT NULL AS token FROM (SELECT idem_claim('list', 'g', lease => '1 hour') AS c) s;
SELECT (c).outcome, (c).token IS NOT NULL AS token FROM (SELECT idem_claim('list', 'g2', lease => '1 hour') AS c OFFSET 0) s;
SELECT k, c.outcome, c.token IS NOT NULL AS token FROM unnest('{h,i,h}'::text[]) WITH ORDINALITY u(k, n), LATERAL idem_claim('list', k, lease => '1 hour') c ORDER BY n;
SELECT k, (idem_claim('list', k, lease => '1 hour')).outcome FROM unnest('{j,k}'::text[]) k;
SELECT outcome FROM ROWS FROM (idem_claim('list', 'm', lease => '1 hour'));
SELECT outcome, ordinality FROM idem_claim('list', 'n', lease => '1 hour') WITH ORDINALITY;

-- a second target-list call in a later statement, or for a key that an
-- earlier statement of this transaction claimed, is in_progress
BEGIN;
SELECT (idem_claim('list', 'o')).outcome;
SELECT (idem_claim('list', 'o')).outcome;
SELECT outcome FROM idem_claim('list', 'p');
SELECT pg_temp.seen(to_jsonb(r)) FROM (SELECT (idem_claim('list', 'p')).*) r;
ROLLBACK;

-- PL/pgSQL
DO $$
DECLARE
	c record;
	d record;
BEGIN
	SELECT * INTO c FROM idem_claim('list', 'q');
	ASSERT c.outcome = 'claimed' AND c.token IS NOT NULL;
	c := idem_claim('list', 'r');
	ASSERT c.outcome = 'claimed' AND c.token IS NOT NULL;
	d := idem_claim('list', 'r');
	ASSERT d.outcome = 'in_progress' AND d.token IS NULL;
	FOR d IN SELECT * FROM idem_claim('list', 's') LOOP
		ASSERT d.outcome = 'claimed';
	END LOOP;
	PERFORM idem_claim('list', 't');
	EXECUTE 'SELECT * FROM idem_claim($1, $2)' INTO d USING 'list', 'u';
	ASSERT d.outcome = 'claimed';
	IF (idem_claim('list', 'v')).outcome = 'claimed' THEN
		PERFORM idem_finish('list', 'v');
	END IF;
	PERFORM idem_finish('list', k) FROM unnest('{q,s,t,u}'::text[]) k;
	PERFORM idem_finish('list', 'r', token => c.token);
END $$;
SELECT string_agg(key, ' ' ORDER BY key) FROM idem_record WHERE scope = 'list' AND key >= 'q' AND state = 'succeeded';
-- twice in one expression of PL/pgSQL is twice in one statement
DO $$
BEGIN
	PERFORM idem_claim('list', 'w'), idem_claim('list', 'w');
EXCEPTION WHEN feature_not_supported THEN
	RAISE NOTICE '%', SQLSTATE;
END $$;
-- in SQL functions, inlined or not
CREATE FUNCTION pg_temp.claim(_key text) RETURNS TABLE (outcome text, token uuid) LANGUAGE sql AS $$
	SELECT c.outcome, c.token FROM idem_claim('list', _key, lease => '1 hour') c
$$;
SELECT outcome, token IS NOT NULL AS token FROM pg_temp.claim('x');
SELECT outcome FROM pg_temp.claim('x');

-- a resolve that leaves the key free would be written once for each column
SELECT outcome FROM idem_claim('list', 'y', lease => '1 hour');
SELECT (idem_resolve('list', 'y', state => 'released', force => true)).*;
SELECT attempt FROM idem_record WHERE (scope, key) = ('list', 'y');
SELECT outcome, attempt FROM idem_resolve('list', 'y', state => 'released', force => true);

-- an open cursor has an old snapshot, but the claim it meets is another statement's
BEGIN;
DECLARE c CURSOR FOR SELECT (idem_claim('list', 'z')).outcome;
SELECT outcome FROM idem_claim('list', 'z');
FETCH c;
ROLLBACK;

DELETE FROM idem_record WHERE scope = 'list';
