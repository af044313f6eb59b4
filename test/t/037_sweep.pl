# The sweep: costs what it deletes, shares the work, waits for nobody, and
# leaves alone whatever somebody still needs.
use strict;
use warnings;

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use Test::More;

my $node = new_node('sweep');
my $s = session($node);
my $other = session($node);

sub sql { return $node->safe_psql('postgres', $_[0]) }

# Rows as claim and finish leave them: a share of them expired and spread over
# the table, the rest alive.
sub fill
{
	my ($rows, $expired) = @_;
	sql(qq{
		TRUNCATE idem_record;
		INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at,
				claimed_at, expires_at, ttl, on_abandon, recovered, progressed, finished_at)
			SELECT 's', 'k' || i, '', 'succeeded', 1, gen_random_uuid(), now() - interval '2 d',
				now() - interval '2 d',
				CASE WHEN i % ($rows / $expired) = 0 THEN now() - interval '1 d' * random()
					ELSE now() + interval '1 d' END,
				'1 d', 'unknown', false, false, now()
			FROM generate_series(1, $rows) i;
		VACUUM ANALYZE idem_record});
	return;
}

sub expire { return sql("UPDATE idem_record SET expires_at = now() - interval '1 d' WHERE $_[0]") }

# --- Cost ---------------------------------------------------------------------

sub pages_of_call
{
	my ($max_rows) = @_;
	my $plan = $s->do("EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, FORMAT json)
		SELECT * FROM idem_sweep($max_rows)");
	my ($hit) = $plan =~ /"Shared Hit Blocks": (\d+)/;
	my ($read) = $plan =~ /"Shared Read Blocks": (\d+)/;
	return $hit + $read;
}

sub pages_of_sweep
{
	my ($rows) = @_;
	fill($rows, 500);
	my $pages = pages_of_call(500);
	is(sql('SELECT count(*) FROM idem_record'), $rows - 500, "500 of $rows are deleted");
	return $pages;
}

my @sizes = (10_000, 100_000, $ENV{SWEEP_LARGE} ? 1_000_000 : ());
my @pages = map { pages_of_sweep($_) } @sizes;
note "pages touched at @sizes live records: @pages";
for my $i (1 .. $#sizes)
{
	cmp_ok($pages[$i], '<', 1.5 * $pages[0],
		"the cost at $sizes[$i] live records is that of $sizes[0]");
}

# Live leases whose ttl is over are not in the way either.
fill(1_000, 500);
sql(q{
	INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at, claimed_at,
			expires_at, ttl, on_abandon, recovered, progressed, lease, lease_expires_at)
		SELECT 's', 'l' || i, policy, 'processing', 1, gen_random_uuid(), now(), now(),
			now() - interval '2 d', '1 s', policy, false, false, '1 d', now() + interval '1 d'
		FROM generate_series(1, 10000) i, unnest('{unknown,retry}'::text[]) policy;
	VACUUM ANALYZE idem_record});
cmp_ok(pages_of_call(500), '<', 1.5 * $pages[0], 'twenty thousand live leases cost nothing');
is(sql('SELECT count(*) FROM idem_record'), '20500', 'and stay');

# --- Two sweepers --------------------------------------------------------------

# Each client deletes half of what there is at most, so both have to.
fill(100_000, 100_000);
sql('CREATE TABLE swept (client int, deleted bigint)');
is( run_pgbench($node,
		"INSERT INTO swept SELECT :client_id, deleted FROM idem_sweep(500);\n",
		qw(-c 2 -j 2 -t 110)),
	'ok', 'two sweepers at once');
is(sql('SELECT sum(deleted), count(DISTINCT client) FILTER (WHERE deleted > 0) FROM swept'),
	'100000|2', 'they share the work and count each row once');
is(sql('SELECT count(*) FROM idem_record'), '0', 'nothing expired is left');

# The same beside claims of the very keys that expire.
fill(20_000, 20_000);
sql('CREATE TABLE effect (key text); TRUNCATE swept');
my $sweepers = session($node);
$sweepers->send('CALL idem_sweep_all(50)');
is( run_pgbench($node, q{
\set i random(1, 20000)
BEGIN;
SELECT outcome = 'claimed' AS mine FROM idem_claim('s', 'k' || :i, ttl => '1 h') \gset
\if :mine
INSERT INTO effect VALUES ('k' || :i);
SELECT idem_finish('s', 'k' || :i);
\endif
COMMIT;
}, qw(-c 4 -j 2 -t 1000)), 'ok', 'claims while a sweep is running');
is($sweepers->result, '', 'the sweep ends');
is( sql('SELECT count(*), count(DISTINCT key) = count(*) FROM effect'),
	sql('SELECT count(*), true FROM idem_record'),
	'each key claimed anew ran once and has its record');

# --- What is left alone -----------------------------------------------------------

sql(q{
	TRUNCATE idem_record;
	SELECT idem_claim('s', 'live', lease => '1 h', ttl => '1 ms', on_abandon => 'retry');
	SELECT idem_claim('s', 'live unknown', lease => '1 h', ttl => '1 ms');
	SELECT idem_claim('s', 'lapsed unknown', lease => '1 ms', ttl => '1 ms');
	SELECT idem_claim('s', 'lapsed retry', lease => '1 ms', ttl => '1 ms', on_abandon => 'retry');
	SELECT idem_claim('s', 'lapsed retry in ttl', lease => '1 ms', on_abandon => 'retry');
	SELECT idem_claim('s', 'said unknown', lease => '1 h', ttl => '1 ms');
	SELECT idem_finish(scope, key, token => token, state => 'unknown')
		FROM idem_record WHERE key = 'said unknown';
	SELECT idem_once('s', 'settled');
	SELECT idem_once('s', 'expired', ttl => '1 ms');
	BEGIN;
	SELECT idem_claim('s', 'released', ttl => '1 ms');
	SELECT idem_finish('s', 'released', state => 'released');
	COMMIT});
await($node, q{SELECT every(greatest(expires_at, lease_expires_at) < clock_timestamp())
	FROM idem_record WHERE key IN ('lapsed unknown', 'lapsed retry', 'expired', 'released')});
await($node, q{SELECT count(*) = 5 FROM idem_record WHERE expires_at > clock_timestamp()
	OR lease_expires_at > clock_timestamp() OR key = 'said unknown'});
is($s->do('SELECT * FROM idem_sweep()'), '3|2|f', 'what expired is deleted; unresolved ones are counted');
is( sql(q{SELECT string_agg(key, ', ' ORDER BY key) FROM idem_record}),
	'lapsed retry in ttl, lapsed unknown, live, live unknown, said unknown, settled',
	'live leases and unknown ones outlive their ttl');
is( sql(q{SELECT key FROM idem_unresolved ORDER BY key}), "lapsed unknown\nsaid unknown",
	'the view shows what was counted');

# An uncommitted claim and an uncommitted change of somebody else.
fill(10, 10);
$other->do(q{BEGIN; SELECT idem_claim('s', 'new', ttl => '1 ms'); SELECT idem_finish('s', 'new');
	SELECT outcome FROM idem_claim('s', 'k3')});
await($node, 'SELECT pg_sleep(0.005) IS NOT NULL');
is($s->do('SELECT * FROM idem_sweep()'), '9|0|f', 'what somebody is changing stays');
$other->do('ROLLBACK');
is($s->do('SELECT * FROM idem_sweep()'), '1|0|f', 'until that is over');

# Our own claims are never expired while their transaction runs.
is( $s->do(q{BEGIN; SELECT outcome FROM idem_claim('s', 'own', ttl => '1 us');
	SELECT deleted FROM idem_sweep(); SELECT idem_finish('s', 'own'); COMMIT}),
	"claimed\n0\nt", 'not even a claim of the same transaction');

# --- Locked rows -----------------------------------------------------------------

fill(10, 10);
$other->do(q{BEGIN; SELECT 1 FROM idem_record WHERE key IN ('k1', 'k2') FOR UPDATE});
is($s->do('SELECT * FROM idem_sweep(5)'), '5|0|t', 'locked rows are skipped');
is($s->do('SELECT * FROM idem_sweep(3)'), '3|0|f', '"more" does not speak of locked ones');
is($s->do('SELECT * FROM idem_sweep()'), '0|0|f', 'they are nobody\'s turn');
is($s->do('CALL idem_sweep_all()'), '', 'the procedure does not wait for them either');
is($s->do(q{SELECT outcome FROM idem_lookup('s', 'k1')}), 'absent', 'and they are absent all the same');
is( $s->do(q{SELECT outcome FROM idem_claim('s', 'k1', lease => '1 h')}),
	'in_progress', 'a claim of one does not block');
$other->do('COMMIT');
is($s->do('SELECT * FROM idem_sweep()'), '2|0|f', 'once unlocked they go');

# A share lock is a lock as well.
fill(1, 1);
$other->do('BEGIN; SELECT 1 FROM idem_record FOR KEY SHARE');
is($s->do('SELECT * FROM idem_sweep()'), '0|0|f', 'a key share lock keeps the row');
$other->do('COMMIT');

# --- Arguments, order ------------------------------------------------------------------

fill(10, 10);
sql(q{UPDATE idem_record SET expires_at = now() - interval '1 h' * substr(key, 2)::int});
is($s->do('SELECT * FROM idem_sweep(3)'), '3|0|t', 'max_rows is a limit');
is(sql(q{SELECT min(key), max(key), count(*) FROM idem_record}), 'k1|k7|7', 'the oldest go first');
is($s->do('SELECT * FROM idem_sweep(7)'), '7|0|f', 'the last batch says so');
is($s->do("SELECT * FROM idem_sweep($_)"), 'ERROR 22023', "max_rows = $_") for 0, -1, 'NULL';
is($s->do("CALL idem_sweep_all($_)"), 'ERROR 22023', "idem_sweep_all($_)")
  for 0, -1, 'NULL', q{1, '-1 s'}, '1, NULL';

# --- Inside a transaction ------------------------------------------------------------

sql(q{CREATE FUNCTION sweeping() RETURNS void LANGUAGE plpgsql AS 'BEGIN CALL idem_sweep_all(); END'});
fill(10, 10);
is($s->do('BEGIN; CALL idem_sweep_all()'), 'ERROR 2D000', 'not in a transaction block');
$s->do('ROLLBACK');
is($s->do('SELECT sweeping()'), 'ERROR 2D000', 'not in a function');
is($s->do(q{BEGIN; DO 'BEGIN CALL idem_sweep_all(); END'}), 'ERROR 2D000', 'not in a block in a transaction');
$s->do('ROLLBACK');
is(sql('SELECT count(*) FROM idem_record'), '10', 'refused before anything is deleted');
is($s->do(q{DO 'BEGIN CALL idem_sweep_all(3); END'}), '', 'in a block of its own');
is(sql('SELECT count(*) FROM idem_record'), '0', 'it deletes all');

# An error later leaves what was committed.
fill(10, 10);
$s->send(q{CALL idem_sweep_all(4, '1 h')});
await($node, 'SELECT count(*) = 6 FROM idem_record');
await($node, "SELECT state = 'active' AND wait_event_type IN ('Extension', 'Timeout')
	FROM pg_stat_activity WHERE pid = " . $s->pid);
sql('SELECT pg_cancel_backend(' . $s->pid . ')');
is($s->result, 'ERROR 57014', 'the pause can be cancelled');
is(sql('SELECT count(*) FROM idem_record'), '6', 'the first batch was committed');
is($s->do(q{CALL idem_sweep_all(4, '1 ms')}), '', 'the next run goes on');
is(sql('SELECT count(*) FROM idem_record'), '0', 'to the end');

# --- Isolation levels ---------------------------------------------------------------

for my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	fill(100, 1);
	$s->do("BEGIN ISOLATION LEVEL $level; SELECT pg_current_snapshot()");
	expire(q{key IN ('k1', 'k2')});
	sql(q{SELECT idem_once('s', 'short', ttl => '1 ms')});
	await($node, q{SELECT expires_at < clock_timestamp() FROM idem_record WHERE key = 'short'});
	is($s->do('SELECT * FROM idem_sweep(); COMMIT'), '4|0|f',
		"$level: what expired after the snapshot was taken is deleted");

	fill(100, 100);
	$_->do("BEGIN ISOLATION LEVEL $level; SELECT pg_current_snapshot()") for $s, $other;
	# the first may have locked one more, to know that there is more
	my $first = $s->do('SELECT * FROM idem_sweep(50)');
	my $second = $other->do('SELECT * FROM idem_sweep(50)');
	like("$first $second", qr/^50\|0\|t (49|50)\|0\|f$/, "$level: two sweeps do not fail each other");
	is($s->do('COMMIT') . $other->do('COMMIT'), '', "$level: both commit");
	$s->do('SELECT idem_sweep()');
	is(sql('SELECT count(*) FROM idem_record'), '0', "$level: all is deleted");
}

# A rolled-back sweep deletes nothing.
fill(10, 10);
is($s->do('BEGIN; SELECT deleted FROM idem_sweep(); ROLLBACK; SELECT count(*) FROM idem_record'),
	"10\n10", 'a sweep is undone with its transaction');

$node->stop;
done_testing();
