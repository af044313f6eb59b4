# Where nothing can be written: a streaming hot standby, and read-only
# transactions.  Lookup works there; every other call is refused, also when it
# would only have replayed, so that no application works on replays and breaks
# on its first fresh key.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = new_node('primary',
	init => { allows_streaming => 1 },
	conf => "max_standby_streaming_delay = -1\n");
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

sub on_primary { return $primary->safe_psql('postgres', $_[0]) }
sub catch_up { $primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush')); return }
sub seen { return $standby->safe_psql('postgres', "SELECT l FROM idem_lookup('s', '$_[0]') l") }

# --- What a lookup sees ----------------------------------------------------------

on_primary(q{
	BEGIN;
	SELECT idem_claim('s', 'done');
	SELECT idem_finish('s', 'done', response_code => 201, response_body => 'body',
		response_headers => '{"Location": "/1"}');
	COMMIT;
	BEGIN;
	SELECT idem_claim('s', 'large');
	SELECT idem_finish('s', 'large', response_bytes => decode(string_agg(md5(i::text), ''), 'hex'))
		FROM generate_series(1, 1000) i;
	COMMIT;
	BEGIN;
	SELECT idem_claim('s', 'released');
	SELECT idem_finish('s', 'released', state => 'released');
	COMMIT;
	SELECT idem_claim('s', 'leased', lease => '1 h',
		claim_token => '00000000-0000-4000-8000-000000000001');
	SELECT idem_claim('s', 'lapsed', lease => '1 ms');
	SELECT idem_claim('s', 'retry', lease => '1 ms', on_abandon => 'retry');
	SELECT idem_once('s', 'expired', ttl => '1 ms');
	SELECT idem_once('s', 'forgotten');
	SELECT idem_forget('s', 'forgotten')});
catch_up();

like(seen('done'), qr/^\(replayed,succeeded,1,,,201,body,"\{""Location"": ""\/1""\}",,,"/, 'a replay');
is($standby->safe_psql('postgres', q{SELECT md5(response_bytes) FROM idem_lookup('s', 'large')}),
	on_primary(q{SELECT md5(response_bytes) FROM idem_lookup('s', 'large')}),
	'a response stored out of line');
like(seen('leased'), qr/^\(in_progress,processing,1,.*\d\d:/, 'a lease');
like(seen('released'), qr/^\(released,released,1,/, 'a released record');
ok( $standby->poll_query_until('postgres', q{SELECT string_agg(outcome, ' ' ORDER BY k.ord) =
		'unknown released absent absent absent'
	FROM unnest('{lapsed,retry,expired,forgotten,never}'::text[]) WITH ORDINALITY k (key, ord),
		idem_lookup('s', k.key)}),
	'what the clock decides, what was deleted and what never was');

# Changes of transactions that are in progress on the primary: the next commit
# makes the standby learn of them.
my $open = session($primary);
$open->do(q{
	BEGIN;
	SELECT idem_claim('s', 'open');
	SELECT idem_finish('s', 'open');
	SELECT idem_claim('s', 'open lease', lease => '1 h');
	SELECT idem_finish('s', 'leased', token => '00000000-0000-4000-8000-000000000001');
	SELECT idem_forget('s', 'done')});
on_primary(q{SELECT idem_once('s', 'later')});
catch_up();
is(seen($_), '(in_progress,,,,,,,,,,)', "$_: claimed, and not committed on the primary")
  for 'open', 'open lease';
like(seen('leased'), qr/^\(in_progress,processing,1,/, 'a finish that is not committed decides nothing');
like(seen('done'), qr/^\(replayed,succeeded,1,/, 'nor does a deletion');
$open->do('ROLLBACK');
on_primary(q{SELECT idem_once('s', 'later still')});
catch_up();
is(seen('open'), '(absent,,,,,,,,,,)', 'rolled back, the claim is gone');

# A record that is there all the time is seen all the time, however its
# versions are moved and cleaned away on the primary.
on_primary(q{SELECT idem_claim('s', 'churned', lease => '1 h',
	claim_token => '00000000-0000-4000-8000-000000000002')});
catch_up();
my $churn = start_pgbench($primary, q{
SELECT idem_checkpoint('s', 'churned', token => '00000000-0000-4000-8000-000000000002',
	checkpoint => 'c', lease => '1 h');
SELECT idem_once('churn', random()::text);
\set now_and_then random(1, 50)
\if :now_and_then = 1
VACUUM idem_record;
\endif
}, qw(-c 1 -t 2000));
my $looking = start_pgbench($standby,
	q{SELECT 1 / (outcome = 'in_progress')::int FROM idem_lookup('s', 'churned');},
	qw(-c 2 -t 4000));
is(finish_pgbench($churn), 'ok', 'a record is changed and vacuumed on the primary');
is(finish_pgbench($looking), 'ok', 'the standby sees it all the time');

# --- What cannot be called -----------------------------------------------------------

my $token = q{token => '00000000-0000-4000-8000-000000000001'};
my @refused = (
	q{SELECT idem_claim('s', 'new')},
	q{SELECT idem_claim('s', 'done')},
	q{SELECT idem_claim('s', 'done', request => '{"another": "request"}')},
	q{SELECT idem_claim('s', 'leased', lease => '1 h')},
	q{SELECT idem_claim('s', 'lapsed')},
	q{SELECT idem_claim('s', NULL)},
	q{SELECT idem_claim('s', 'done', wait => '-1 s')},
	"SELECT idem_finish('s', 'done', $token)",
	"SELECT idem_extend('s', 'leased', $token)",
	"SELECT idem_checkpoint('s', 'leased', $token, checkpoint => 'c')",
	"SELECT idem_assert('s', 'leased', $token)",
	q{SELECT idem_once('s', 'done')},
	q{SELECT idem_once('s', 'new')},
	q{SELECT * FROM idem_once_batch('s', '{done}')},
	q{SELECT * FROM idem_once_batch('s', '{}')},
	q{SELECT idem_execute('s', 'done', command => 'SELECT 1')},
	q{SELECT idem_execute('s', 'new', command => 'SELECT 1')},
	q{SELECT idem_takeover('s', 'lapsed')},
	q{SELECT idem_takeover('s', 'never')},
	q{SELECT idem_resolve('s', 'done', state => 'failed')},
	q{SELECT idem_forget('s', 'never')},
	q{SELECT idem_sweep()},
	q{CALL idem_sweep_all()});

sub refused_everywhere
{
	my ($s, $where) = @_;
	is($s->do($_), 'ERROR 25006', "$where: $_") for @refused;
	return;
}

sub works_everywhere
{
	my ($s, $where) = @_;
	is($s->do(q{SELECT outcome, response_body FROM idem_lookup('s', 'done')}),
		'replayed|body', "$where: lookup");
	is($s->do(q{SELECT outcome FROM idem_lookup('s', 'never')}), 'absent', "$where: lookup of nothing");
	is($s->do(q{SELECT length(idem_fingerprint('{}'))}), '32', "$where: fingerprint");
	is($s->do(q{SELECT unresolved FROM idem_health}), '1', "$where: health");
	is($s->do(q{SELECT key FROM idem_unresolved}), 'lapsed', "$where: unresolved");
	return;
}

my $on_standby = session($standby);
refused_everywhere($on_standby, 'standby');
works_everywhere($on_standby, 'standby');
$on_standby->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
works_everywhere($on_standby, 'standby, REPEATABLE READ');
$on_standby->do('ROLLBACK');

my $read_only = session($primary);
$read_only->do('SET default_transaction_read_only = on');
refused_everywhere($read_only, 'read-only transactions');
for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	$read_only->do("BEGIN ISOLATION LEVEL $level READ ONLY");
	works_everywhere($read_only, "read only, $level");
	is($read_only->do(q{SELECT idem_claim('s', 'done')}), 'ERROR 25006', "read only, $level: claim");
	$read_only->do('ROLLBACK');
}
is(on_primary(q{SELECT count(*) FROM idem_record WHERE key = 'new'}), '0', 'nothing was written');

# The planner does not run the calls in parallel; a function that lies about
# itself makes them meet a parallel query all the same.
$primary->safe_psql('postgres', q{
	CREATE FUNCTION liar(call text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS
		'DECLARE r text; BEGIN EXECUTE ''SELECT '' || call INTO r; RETURN r; END'});
my $parallel = session($primary);
my $setting = $primary->safe_psql('postgres',
	q{SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')});
$parallel->do("SET $setting = on");
for my $call (@refused)
{
	next unless $call =~ /^SELECT (?:\* FROM )?(idem_.*)$/;
	my $quoted = $1 =~ s/'/''/gr;
	is($parallel->do("SELECT liar('$quoted')"), 'ERROR 25000', "in a parallel query: $1");
}

# --- Synchronous replication ------------------------------------------------------------

# A commit that waits for a standby is not over for anybody else.
$on_standby->quit;
$standby->stop;
$primary->append_conf('postgresql.conf',
	"synchronous_standby_names = 'standby'\nsynchronous_commit = remote_apply\n");
$primary->reload;
# It is the checkpointer that tells everybody whether to wait, and it minds the
# signal before it makes a checkpoint.
on_primary('CHECKPOINT');
my $waiting = session($primary);
$waiting->send(q{SELECT outcome FROM idem_claim('s', 'waiting', lease => '1 h')});
await($primary, q{SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = } . $waiting->pid);
is( on_primary(q{SELECT l FROM idem_lookup('s', 'waiting') l;
		SELECT outcome FROM idem_claim('s', 'waiting', lease => '1 h', wait => '10 ms')}),
	"(in_progress,,,,,,,,,,)\nin_progress", 'a claim that waits for the standby is not committed yet');
on_primary('SELECT pg_cancel_backend(' . $waiting->pid . ')');
is($waiting->result, 'claimed', 'its wait is cancelled');
like(on_primary(q{SELECT l FROM idem_lookup('s', 'waiting') l}), qr/^\(in_progress,processing,1,/,
	'and it is committed here');

$standby->start;
$waiting->do(q{SELECT idem_claim('s', 'acknowledged', lease => '1 h')});
is(seen('acknowledged') =~ s/,.*//r, '(in_progress', 'with remote_apply a claim that was answered is on the standby');

# --- Failover ------------------------------------------------------------------------------

# What only the primary knew is lost with it, where nobody waited for the standby.
$standby->stop;
$primary->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
$primary->reload;
is(session($primary)->do(q{SELECT outcome FROM idem_claim('s', 'lost', lease => '1 h')}), 'claimed',
	'a claim that the standby never got');
$primary->stop('immediate');
$standby->start;
$on_standby = session($standby);
is($on_standby->do('SELECT pg_is_in_recovery()'), 't', 'still a standby');
$standby->promote;
my $promoted = session($standby);
is($promoted->do(q{SELECT outcome FROM idem_lookup('s', 'lost')}), 'absent', 'it is forgotten');
is($promoted->do(q{SELECT outcome FROM idem_lookup('s', 'acknowledged')}),
	'in_progress', 'what was acknowledged by the standby is not');
is($promoted->do(q{SELECT outcome, response_body FROM idem_claim('s', 'done')}),
	'replayed|body', 'once promoted it replays');
is($promoted->do(q{SELECT outcome FROM idem_claim('s', 'lapsed')}),
	'unknown', 'it knows what is unresolved');
is($promoted->do("SELECT idem_finish('s', 'leased', $token)"), 't', 'tokens stay good');
is( $promoted->do(q{BEGIN; SELECT outcome FROM idem_claim('s', 'new');
		SELECT idem_finish('s', 'new'); COMMIT}),
	"claimed\nt", 'and it takes new claims');
is($on_standby->do(q{SELECT outcome FROM idem_claim('s', 'new')}),
	'replayed', 'in sessions that began before as well');

$standby->stop;
done_testing();
