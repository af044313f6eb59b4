# The sweep under pg_cron, as a role with the operator's privileges.  A
# scheduler that was dead for a day costs nobody a key, its backlog can be
# seen, and a row that cannot be deleted does not stop the next sweep.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('cron', conf => "max_prepared_transactions = 2\n");
plan skip_all => 'pg_cron is not installed' unless available($node, 'pg_cron');

# It connects like any client, or runs its jobs in background workers.
$node->append_conf('postgresql.conf', sprintf q{
shared_preload_libraries = 'pg_cron'
cron.database_name = 'postgres'
cron.host = '%s'
max_worker_processes = 20
}, $node->host);
$node->restart;

sub sql { return $node->safe_psql('postgres', $_[0]) }

sql(q{
	CREATE EXTENSION pg_cron;
	CREATE ROLE ops LOGIN;
	GRANT USAGE ON SCHEMA cron TO ops;
	SELECT idem_grant('ops', 'operator')});

# Before 1.5 pg_cron counts in minutes.  A job for the start of the server is
# then the one that need not be waited for.
my $seconds = sql(q{SELECT (regexp_match(extversion, '^(\d+)\.(\d+)'))::int[] >= '{1,5}'
	FROM pg_extension WHERE extname = 'pg_cron'}) eq 't';

sub as_ops { my $s = session($node, user => 'ops'); my $said = $s->do($_[0]); $s->quit; return $said }

sub schedule
{
	my $when = $seconds ? '1 seconds' : '@reboot';
	like(as_ops("SELECT cron.schedule('sweep', '$when', 'CALL idem_sweep_all()')"), qr/^\d+$/,
		"scheduled: $when");
	return;
}

sub next_run { $node->restart unless $seconds; return }

sub runs_succeeded
{
	my ($than) = @_;
	await($node, "SELECT count(*) > $than FROM cron.job_run_details WHERE status = 'succeeded'");
	return sql(q{SELECT count(*) FROM cron.job_run_details WHERE status = 'succeeded'});
}

# Rows whose time was over a day ago, as a scheduler that died leaves them.
my $backlog = q{
	INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at, claimed_at,
			expires_at, ttl, on_abandon, recovered, progressed, finished_at)
		SELECT 's', 'k' || i, '', 'succeeded', 1, gen_random_uuid(), now() - interval '48 h',
			now() - interval '48 h', now() - interval '24 h', '1 d', 'unknown', false, false,
			now() - interval '48 h'
		FROM generate_series(1, 3000) i};
my $poisoned = q{BEGIN; SELECT 1 FROM idem_record WHERE key = 'k7' FOR UPDATE; PREPARE TRANSACTION 'poison'};
my $expired = q{SELECT coalesce(string_agg(key, ' '), '') FROM idem_record
	WHERE sweep_at <= clock_timestamp()};

for my $workers ('off', 'on')
{
	my $mode = "cron.use_background_workers = $workers";
	$node->append_conf('postgresql.conf', "$mode\n");
	$node->restart;
	sql('TRUNCATE idem_record; TRUNCATE cron.job_run_details');

	sql($backlog);
	sql(q{SELECT idem_once('s', 'fresh'); SELECT idem_claim('s', 'unknown', lease => '1 ms', ttl => '1 ms')});
	is( sql(q{SELECT oldest_expired BETWEEN '24 h' AND '25 h', leased, unresolved FROM idem_health}),
		't|0|1', "$mode: the backlog can be seen");
	is( sql(q{SELECT outcome, attempt FROM idem_claim('s', 'k1', lease => '1 h');
			SELECT outcome FROM idem_lookup('s', 'k2'); SELECT idem_once('s', 'k3')}),
		"claimed|1\nabsent\nt", "$mode: and is in nobody's way");
	sql($poisoned);

	schedule();
	next_run();
	await($node, 'SELECT count(*) = 5 FROM idem_record');
	is(sql($expired), 'k7', "$mode: all is deleted but the row that somebody holds");
	is(sql(q{SELECT string_agg(key, ' ' ORDER BY key) FROM idem_record}),
		'fresh k1 k3 k7 unknown', "$mode: and what is alive");
	my $runs = runs_succeeded(0);

	sql(q{SELECT idem_once('s', 'later', ttl => '1 ms')});
	await($node, q{SELECT expires_at < clock_timestamp() FROM idem_record WHERE key = 'later'});
	next_run();
	# a run that was under way before then may have passed it over
	await($node, q{SELECT count(*) = 0 FROM idem_record WHERE key = 'later'});
	runs_succeeded($runs);
	is(sql($expired), 'k7', "$mode: the next run does its work all the same");
	is( sql(q{SELECT oldest_expired > '24 h' FROM idem_health}), 't', "$mode: the row that is left can be seen");

	sql(q{ROLLBACK PREPARED 'poison'});
	next_run();
	await($node, q{SELECT count(*) = 0 FROM idem_record WHERE key = 'k7'});
	is(sql('SELECT oldest_expired IS NULL FROM idem_health'), 't', "$mode: and goes when it can");
	is(sql(q{SELECT count(*) FROM cron.job_run_details WHERE status = 'failed'}), '0',
		"$mode: no run failed")
	  or diag sql('SELECT * FROM cron.job_run_details');
	as_ops(q{SELECT cron.unschedule('sweep')});
}

# --- as the manual says ---------------------------------------------------------------

sql(q{CREATE DATABASE app});
like(sql(q{SELECT cron.schedule('idempotency-sweep', '* * * * *', 'CALL idem_sweep_all()')}),
	qr/^\d+$/, 'the job of the manual');
like(sql(q{SELECT cron.schedule_in_database('idempotency-sweep-app', '* * * * *', 'CALL idem_sweep_all()', 'app')}),
	qr/^\d+$/, 'and the one for another database');
is(sql(q{SELECT string_agg(database || ' ' || command, ', ' ORDER BY jobid) FROM cron.job}),
	'postgres CALL idem_sweep_all(), app CALL idem_sweep_all()', 'each in its database');

$node->stop;
done_testing();
