# Policies where a change of them reaches a session by other ways than a plain
# commit: COMMIT PREPARED, streaming to a standby, logical replication; and
# sessions that call without pause while a policy comes and goes.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = new_node('primary',
	init => { allows_streaming => 'logical' },
	conf => "max_prepared_transactions = 10\n");
my $s = session($primary);

sub sql { return $primary->safe_psql('postgres', $_[0]) }

# The ttl that a session's next mark gets.
sub next_ttl
{
	my ($session) = @_;
	return $session->do(q{
		DELETE FROM idem_record WHERE key = 'next';
		SELECT FROM idem_once('s', 'next');
		SELECT ttl FROM idem_record WHERE key = 'next'});
}

# --- Two-phase commit ------------------------------------------------------------

is(next_ttl($s), '30 days', 'no policy');
sql(q{BEGIN; INSERT INTO idem_policy VALUES ('s', '1 d'); PREPARE TRANSACTION 'p'});
is(next_ttl($s), '30 days', 'one that is prepared does not count');
sql(q{COMMIT PREPARED 'p'});
is(next_ttl($s), '1 day', 'once committed, it does');
$s->do(q{BEGIN; UPDATE idem_policy SET ttl = '2 d'; SELECT idem_once('s', 'own'); PREPARE TRANSACTION 'p'});
is(next_ttl($s), '1 day', 'nor does it for the session that prepared it');
sql(q{ROLLBACK PREPARED 'p'});
is(next_ttl($s), '1 day', 'rolled back, it never does');
$primary->restart;
$s = session($primary);
is(next_ttl($s), '1 day', 'after a restart');

# --- Standby ---------------------------------------------------------------------

$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
sql(q{CREATE ROLE client; CREATE ROLE team; SELECT idem_grant('client')});
sub catch_up { $primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush')); return }

catch_up();
my $reader = session($standby);
$reader->do('SET ROLE client');
is($reader->do(q{SELECT outcome FROM idem_lookup('s', 'no such key')}), 'absent', 'a lookup on a standby');
sql(q{UPDATE idem_policy SET role = 'team'});
catch_up();
is($reader->do(q{SELECT outcome FROM idem_lookup('s', 'no such key')}), 'ERROR 42501', 'the scope is closed there too');
sql(q{GRANT team TO client});
catch_up();
is($reader->do(q{SELECT outcome FROM idem_lookup('s', 'no such key')}), 'absent', 'and open to a member');
sql(q{UPDATE idem_policy SET role = NULL; REVOKE team FROM client});
catch_up();
is($reader->do(q{SELECT outcome FROM idem_lookup('s', 'no such key')}), 'absent', 'and to all again');
$reader->quit;
$standby->stop;

# --- Logical replication ---------------------------------------------------------
# The apply worker runs with session_replication_role = replica, row by row.

my $subscriber = new_node('subscriber');
my $there = session($subscriber);
is(next_ttl($there), '30 days', 'a subscriber before it subscribes');
sql(q{CREATE PUBLICATION p FOR TABLE idem_policy});
$subscriber->safe_psql('postgres', sprintf q{CREATE SUBSCRIPTION p CONNECTION 'host=%s port=%s dbname=postgres' PUBLICATION p},
	$primary->host, $primary->port);
$subscriber->wait_for_subscription_sync($primary, 'p');
is(next_ttl($there), '1 day', 'what is there at the start');
for my $change (
	[ q{UPDATE idem_policy SET ttl = '3 d'}, '3 days' ],
	[ q{INSERT INTO idem_policy VALUES ('other', '1 d'); DELETE FROM idem_policy WHERE scope = 's'}, '30 days' ],
	[ q{INSERT INTO idem_policy VALUES ('s', '4 d')}, '4 days' ],
	[ q{TRUNCATE idem_policy}, '30 days' ])
{
	sql($change->[0]);
	$primary->wait_for_catchup('p');
	is(next_ttl($there), $change->[1], "replicated: $change->[0]");
}
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION p');
$subscriber->stop;

# --- Under traffic ---------------------------------------------------------------
# Each change is followed by marks in other sessions, which must all go by it:
# the marks of round N are made after the commit of policy N and before N + 1.

my @sessions = map { session($primary) } 1 .. 3;
my $noise = start_pgbench($primary,
	"SELECT idem_once('s', md5(random()::text));\n", '--client=2', '--transactions=2000');
my $stale = 0;
for my $round (1 .. 40)
{
	sql(  $round % 5
		? "INSERT INTO idem_policy VALUES ('s', '$round h') ON CONFLICT (scope) DO UPDATE SET ttl = EXCLUDED.ttl"
		: 'DELETE FROM idem_policy');
	my $ttl = $round % 5 ? "'$round h'" : "'30 d'";
	$stale += $_->do("SELECT idem_once('s', 'round $round by ' || pg_backend_pid());
		SELECT (ttl <> $ttl)::int FROM idem_record WHERE key = 'round $round by ' || pg_backend_pid()") =~ /^t\n0$/ ? 0 : 1
	  for @sessions;
}
is($stale, 0, 'no session goes by a policy that has changed');
is(finish_pgbench($noise), 'ok', 'nor does one that calls all the time fail');

done_testing();
