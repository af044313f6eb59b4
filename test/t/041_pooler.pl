# Behind a pooler in transaction mode, where every transaction may run in
# another server session, next to those of other clients: no call needs or
# leaves anything in a session.  And in session mode; by all three ways that a
# client can send statements.
use strict;
use warnings;

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Debian installs it where only root looks.
my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), qw(/usr/sbin /usr/local/sbin);
plan skip_all => 'pgbouncer is not installed' unless $pgbouncer;

my $node = new_node('pooler');
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $user = $node->safe_psql('postgres', 'SELECT current_user');

# Since 1.21 it knows which server session has which prepared statement.
my ($release) = qx{$pgbouncer --version} =~ /PgBouncer 1\.(\d+)/;
my $tracks = $release >= 21;
my $tracking = $tracks ? 'max_prepared_statements = 100' : '';

# More clients than server sessions.
append_to_file("$dir/users", qq{"$user" ""\n});
append_to_file("$dir/pgbouncer.ini", sprintf q{
[databases]
postgres = host=%1$s port=%2$s pool_size=2
sessions = host=%1$s port=%2$s dbname=postgres pool_mode=session pool_size=4
[pgbouncer]
listen_addr =
unix_socket_dir = %3$s
listen_port = %4$s
auth_type = trust
auth_file = %3$s/users
admin_users = %5$s
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
logfile = %3$s/log
pidfile = %3$s/pid
%6$s
}, $node->host, $node->port, $dir, $port, $user, $tracking);

my $pooler_said = '';
my $pooler = IPC::Run::start([ $pgbouncer, '-q', "$dir/pgbouncer.ini" ], '<', \undef, '>&', \$pooler_said);
END { local $?; $pooler->kill_kill if $pooler }

my $connstr = "host=$dir port=$port dbname=postgres user=$user";
my $tries = 10 * $PostgreSQL::Test::Utils::timeout_default;
until (run_log([ 'psql', '-X', '-c', 'SELECT 1', $connstr ], '>', \my $out, '2>', \my $err))
{
	die "no pooler: $err" unless $tries-- > 0;
	select undef, undef, undef, 0.1;
}

sub client { return session($node, connstr => $connstr) }

# --- A client whose every step meets another server session -----------------------

# Of the two sessions one is held by somebody else's transaction; after each
# step by another's, which holds the session of that step.
my $s = client();
my @others = (client(), client());
my $hold = 'BEGIN; SELECT 1';
my %pids;
$others[0]->do($hold);

sub in_turn
{
	my ($sql) = @_;
	my $said = $s->do($sql);
	$pids{ $s->do('SELECT pg_backend_pid()') } = 1;
	$others[1]->do($hold);
	$others[0]->do('COMMIT');
	@others = reverse @others;
	return $said;
}

my $token = in_turn(q{SELECT token FROM idem_claim('s', 'payment', '', '{"amount": 1}', lease => '1 h')});
like($token, qr/^[0-9a-f-]{36}$/, 'claimed');
is(in_turn(q{SELECT outcome FROM idem_claim('s', 'payment', '', '{"amount": 1}')}),
	'in_progress', 'held');
like(in_turn("SELECT idem_extend('s', 'payment', token => '$token')"), qr/^\d{4}-/, 'extended');
like(in_turn("SELECT idem_checkpoint('s', 'payment', token => '$token', checkpoint => 'charging')"),
	qr/^\d{4}-/, 'checkpointed');
is(in_turn("BEGIN; SELECT idem_assert('s', 'payment', token => '$token'); COMMIT"), '', 'fenced');
is(in_turn("SELECT idem_finish('s', 'payment')"), 'ERROR 22023',
	'no session remembers whose claim it was');
is(in_turn("SELECT idem_finish('s', 'payment', token => '$token', response_body => 'ok')"),
	't', 'finished');
is(in_turn(q{SELECT outcome, response_body FROM idem_claim('s', 'payment', '', '{"amount": 1}')}),
	'replayed|ok', 'replayed');
is(scalar(keys %pids), '2', 'in two server sessions');
$_->do('ROLLBACK') for @others;

# --- Nothing is left to the next client of a server session ------------------------

my $direct = session($node);
my $left = q{SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
	WHERE a.datname = 'postgres' AND a.pid <> pg_backend_pid() AND l.locktype <> 'virtualxid'};
my %ends = (
	'committed' => q{BEGIN; SELECT idem_claim('s', 'c'); SELECT idem_finish('s', 'c'); COMMIT},
	'rolled back' => q{BEGIN; SELECT idem_claim('s', 'r'); ROLLBACK},
	'refused at commit' => q{BEGIN; SELECT idem_claim('s', 'u'); COMMIT},
	'failed' => q{BEGIN; SELECT idem_claim('s', 'f'); SELECT 1 / 0; COMMIT},
	'rolled back to a savepoint' =>
	  q{BEGIN; SAVEPOINT a; SELECT idem_claim('s', 'a'); ROLLBACK TO a; COMMIT},
	'that ran a command' => q{SELECT idem_execute('s', 'x', command => 'SELECT 1')},
	'in one statement' => q{SELECT idem_claim('s', 'lone')});
for my $end (sort keys %ends)
{
	$s->do($ends{$end});
	is($direct->do($left), '0', "a transaction $end leaves no lock");
	is($s->do('BEGIN; CREATE TEMP TABLE t (a int) ON COMMIT DROP; COMMIT'), '',
		"... and nothing that the next commit trips over");
}

# A client that goes away in the middle.
my $gone = client();
$gone->do(q{BEGIN; SELECT idem_claim('s', 'gone'); SELECT idem_once('s', 'gone once')});
is($s->do(q{SELECT outcome FROM idem_claim('s', 'gone', lease => '1 h')}), 'in_progress', 'a client holds a key');
$gone->quit;
await($node, q{SELECT outcome = 'absent' FROM idem_lookup('s', 'gone')});
is( $s->do(q{SELECT outcome FROM idem_claim('s', 'gone', lease => '1 h'); SELECT idem_once('s', 'gone once')}),
	"claimed\nt", 'and lets go of it when it goes away');
$_->quit for $s, @others;

# --- Many clients on shared keys ----------------------------------------------------

$node->safe_psql('postgres', 'CREATE TABLE effect (key text)');
my $work = q{
\set key random(1, 300)
BEGIN;
SELECT outcome = 'claimed' AS mine FROM idem_claim('SCOPE', 'k' || :key, wait => '100 ms') \gset
\if :mine
INSERT INTO effect VALUES ('SCOPE k' || :key);
SELECT idem_finish('SCOPE', 'k' || :key, response_body => 'ok');
\endif
COMMIT;
SELECT outcome FROM idem_execute('SCOPE', 'x' || :key, request => to_jsonb('SCOPE x' || :key),
	command => 'INSERT INTO effect VALUES ($1 #>> ''{}'')');
};
my $each_once = q{SELECT count(*) > 0 AND count(*) = count(DISTINCT key)
		AND count(*) = (SELECT count(*) FROM idem_record WHERE scope = 'SCOPE' AND state = 'succeeded')
	FROM effect WHERE key LIKE 'SCOPE %'};
for my $pool ('postgres', 'sessions')
{
	for my $protocol (qw(simple extended prepared))
	{
		my $name = ($pool eq 'sessions' ? 'session' : 'transaction') . " pooling, $protocol";
		my $scope = "$pool-$protocol";
		# a thread for each, because pgbench prepares without minding its other clients
		my $said = run_pgbench($node, $work =~ s/SCOPE/$scope/gr,
			{ connstr => $connstr =~ s/dbname=\w+/dbname=$pool/r },
			'--protocol', $protocol, qw(-c 8 -j 8 -t 100));

		if ($pool eq 'postgres' && $protocol eq 'prepared' && !$tracks)
		{
			like($said, qr/prepared statement "\w+" (?:already exists|does not exist)/,
				"$name: this pooler loses track of the statements, and the clients are told");
		}
		else
		{
			is($said, 'ok', "$name: eight clients in a few sessions");
		}
		is($direct->do($each_once =~ s/SCOPE/$scope/gr), 't', "$name: each effect once, with its record");
	}
}

$node->stop;
done_testing();
