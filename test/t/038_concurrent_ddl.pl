# Maintenance under traffic.  Indexes of the table are rebuilt, added and
# dropped, concurrently or not, and the table is rewritten, while twelve
# clients work on shared keys: no call fails, no key runs twice, and heap and
# indexes agree at the end.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use Test::More;

my $node = new_node('concurrent_ddl', conf => 'max_connections = 40');
$node->safe_psql('postgres', 'CREATE TABLE effect (key text); CREATE TABLE leased (key text)');

# Each transaction of a client does one of these, with a key out of many or,
# so that there are races to the end, with the one that all clients of the
# moment use.
my $traffic = q{
SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1);
\set choice random(1, 5)
\set key random(1, 30000)
\set hot random(0, 1)
\if :hot
SELECT (extract(epoch FROM clock_timestamp()) * 200)::bigint AS key \gset
\endif
\if :choice = 1
SELECT outcome FROM idem_execute('execute', 'k' || :key, command =>
	'INSERT INTO effect VALUES (''execute k' || :key || ''')', wait => '1 s');
\elif :choice = 2
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outcome = 'claimed' AS mine, attempt > 1 AS again FROM idem_claim('claim', 'k' || :key, wait => '1 s') \gset
\if :mine
INSERT INTO effect VALUES ('claim k' || :key);
SELECT idem_finish('claim', 'k' || :key, response_body => repeat('x', 100));
\endif
COMMIT;
\elif :choice = 3
BEGIN;
SELECT outcome = 'claimed' AS mine, coalesce(token::text, '') AS token
	FROM idem_claim('lease', 'k' || :key, lease => '1 h') \gset
\if :mine
INSERT INTO leased VALUES ('k' || :key);
\endif
COMMIT;
\if :mine
SELECT idem_checkpoint('lease', 'k' || :key, token => :token, checkpoint => 'half way');
SELECT idem_extend('lease', 'k' || :key, token => :token, lease => '2 h');
SELECT idem_finish('lease', 'k' || :key, token => :token, state => 'failed', response_code => 402);
\endif
\elif :choice = 4
BEGIN;
SELECT idem_once('once', 'k' || :key) AS mine \gset
\if :mine
INSERT INTO effect VALUES ('once k' || :key);
\endif
COMMIT;
\else
SELECT outcome FROM idem_lookup('claim', 'k' || :key);
SELECT outcome FROM idem_claim('gone', 'k' || :key, ttl => '1 ms', lease => '1 ms', on_abandon => 'retry');
SELECT idem_sweep(10);
\endif
};

my @statements = (
	(map { "REINDEX INDEX CONCURRENTLY idem_record_$_" } qw(pkey sweep_idx lease_idx)),
	'CREATE INDEX CONCURRENTLY own_idx ON idem_record (state, finished_at) INCLUDE (attempt)',
	'CREATE INDEX CONCURRENTLY own_expr_idx ON idem_record (lower(key)) WHERE attempt = 1',
	'CREATE UNIQUE INDEX CONCURRENTLY own_identity_idx ON idem_record (principal, scope, key)',
	'CREATE INDEX CONCURRENTLY own_hash_idx ON idem_record USING hash (token)',
	'CREATE INDEX CONCURRENTLY own_brin_idx ON idem_record USING brin (claimed_at, finished_at)',
	'REINDEX TABLE CONCURRENTLY idem_record',
	'VACUUM (ANALYZE) idem_record',
	'DROP INDEX CONCURRENTLY own_idx',
	'DROP INDEX CONCURRENTLY own_hash_idx',
	'DROP INDEX CONCURRENTLY own_brin_idx',
	'DROP INDEX CONCURRENTLY own_identity_idx',
	'VACUUM FULL idem_record',
	'CLUSTER idem_record USING idem_record_pkey',
	'REINDEX TABLE idem_record',
	'DROP INDEX CONCURRENTLY own_expr_idx',
	'ALTER TABLE idem_record SET (fillfactor = 70)',
	'VACUUM (FREEZE) idem_record');

# The gate lets all clients go at once, and the statement with them; each time
# the clients go on a while longer.
my $ddl = session($node);
$node->safe_psql('postgres', q{SELECT count(idem_once('old', 'k' || i)) FROM generate_series(1, 50000) i});
for my $statement (@statements)
{
	$ddl->do('SELECT pg_advisory_lock(1)');
	my $run = start_pgbench($node, $traffic, qw(-M prepared -c 12 -j 2 -t 50));
	await($node, q{SELECT count(*) = 12 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted});
	$ddl->do('SELECT pg_advisory_unlock(1)');
	is($ddl->do($statement), '', $statement);
	is(finish_pgbench($run), 'ok', '... and the traffic beside it');
}

sub sql { return $node->safe_psql('postgres', $_[0]) }

cmp_ok(sql('SELECT count(*) FROM effect'), '>', 1000, 'there was traffic');
is( sql(q{SELECT (SELECT count(*) FROM effect) - (SELECT count(DISTINCT key) FROM effect)
		+ (SELECT count(*) FROM leased) - (SELECT count(DISTINCT key) FROM leased)}),
	'0', 'no key ran twice');
is( sql(q{SELECT count(*) FROM effect FULL JOIN
		(SELECT scope || ' ' || key AS key FROM idem_record
			WHERE scope IN ('execute', 'claim', 'once') AND state = 'succeeded') r
		USING (key) WHERE effect.key IS NULL OR r.key IS NULL}),
	'0', 'each effect has its record, and each record its effect');
is( sql(q{SELECT count(*) FROM leased FULL JOIN
		(SELECT key FROM idem_record WHERE scope = 'lease' AND state = 'failed'
			AND checkpoint = 'half way' AND response_code = 402) r
		USING (key) WHERE leased.key IS NULL OR r.key IS NULL}),
	'0', 'so it is with the leases, which are all finished');
is( sql(q{SELECT count(*) FROM (SELECT 1 FROM idem_record
		GROUP BY scope, key, principal HAVING count(*) > 1) twice}),
	'0', 'one record for each identity');

SKIP:
{
	skip 'amcheck is not installed', 1 unless available($node, 'amcheck');
	sql('CREATE EXTENSION amcheck');
	my $check = q{
		SELECT %s(indexrelid, true) FROM pg_index JOIN pg_class c ON c.oid = indexrelid
			JOIN pg_am ON pg_am.oid = relam
		WHERE indrelid = 'idem_record'::regclass AND amname = 'btree'};
	is($ddl->do(sprintf $check, 'bt_index_check'), '', 'each index knows each row');
	is($ddl->do(sprintf $check, 'bt_index_parent_check'), '', 'and is sound');
	is($ddl->do(q{SELECT * FROM verify_heapam('idem_record')}), '', 'so is the table');
}

$node->stop;
done_testing();
