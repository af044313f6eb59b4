# Logical replication of the table, as for moving to another server or another
# major version: a copy, then every change in order, but nothing that was not
# committed.  The subscriber computes sweep_at itself; once it is switched over
# to, owners go on with their tokens and retries replay.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use Test::More;

my %utf8 = (extra => [ '--encoding=UTF8', '--locale=C' ]);
my $publisher = new_node('publisher', init => { allows_streaming => 'logical', %utf8 });
my $subscriber = new_node('subscriber', init => \%utf8);

sub on_publisher { return $publisher->safe_psql('postgres', $_[0]) }
sub on_subscriber { return $subscriber->safe_psql('postgres', $_[0]) }

sub catch_up
{
	$publisher->wait_for_catchup('moving');
	return;
}

# Both sides, in every column.
my $records = q{SELECT string_agg(r::text, E'\n' ORDER BY r::text COLLATE "C") FROM idem_record r};

sub is_same
{
	my ($what) = @_;
	catch_up();
	my $there = on_publisher($records);
	return ok($there eq on_subscriber($records) && $there ne '', "$what: both sides are the same");
}

my $token = '00000000-0000-4000-8000-00000000000';
my $leased = "lease => '1 d', claim_token => '$token";

# --- The copy ---------------------------------------------------------------------

on_publisher(qq{
	BEGIN;
	SELECT idem_claim('s', 'done', 'me', '{"a": 1}');
	SELECT idem_finish('s', 'done', 'me', response_code => 201, response_headers => '{"h": "\\u00e9"}',
		response_body => E'tab\\t newline\\n \\\\ end');
	SELECT idem_claim('s', 'large');
	SELECT idem_finish('s', 'large', response_bytes =>
		(SELECT decode(string_agg(md5(i::text), ''), 'hex') FROM generate_series(1, 5000) i));
	COMMIT;
	SELECT idem_claim('s', 'leased', ${leased}1');
	SELECT idem_claim('s', 'lapsed', lease => '1 ms');
	SELECT idem_claim('s', 'retry', lease => '1 ms', on_abandon => 'retry', claim_token => '${token}2');
	SELECT idem_claim('s', 'unknown', ${leased}3');
	SELECT idem_finish('s', 'unknown', token => '${token}3', state => 'unknown');
	SELECT idem_once('s', 'expired', ttl => '1 ms');
	SELECT idem_once('s', 'forgotten');
	INSERT INTO idem_policy (scope, ttl) VALUES ('ruled', '5 h');
	CREATE PUBLICATION moving FOR TABLE idem_record, idem_policy});
my $connstr = $publisher->connstr . ' dbname=postgres';
on_subscriber(qq{CREATE SUBSCRIPTION moving CONNECTION '$connstr' PUBLICATION moving
	WITH (disable_on_error = true)});
await($subscriber, q{SELECT count(*) = 2 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel});
is_same('a copy');
is(on_subscriber('SELECT key FROM idem_record WHERE sweep_at <= clock_timestamp()'), 'expired',
	'sweep_at, which is not carried, is computed');

# --- The changes -------------------------------------------------------------------

my $open = session($publisher);
$open->do(q{
	BEGIN;
	SELECT idem_claim('s', 'open');
	SELECT idem_claim('s', 'open lease', lease => '1 d')});

# the loser's insert is taken back in the middle of its transaction
my ($winner, $loser) = (session($publisher), session($publisher));
$winner->do(q{BEGIN; SELECT idem_once('s', 'race')});
$loser->send(q{SELECT idem_once('s', 'race'), idem_once('s', 'race over')});
await($publisher, q{SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = } . $loser->pid);
$winner->do('COMMIT');
is($loser->result, 'f|t', 'a race');

on_publisher(qq{
	SELECT idem_claim('s', 'checkpointed', ${leased}4');
	SELECT idem_checkpoint('s', 'checkpointed', token => '${token}4', checkpoint => 'c', checkpoint_data =>
		(SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 1000) i));
	SELECT idem_extend('s', 'checkpointed', token => '${token}4', lease => '2 d');
	SELECT idem_execute('s', 'executed', command => 'SELECT repeat(''0123456789'', 10000), 200');
	BEGIN;
	SELECT idem_claim('s', 'rolled back');
	SELECT idem_finish('s', 'rolled back');
	ROLLBACK;
	BEGIN;
	SAVEPOINT a;
	SELECT idem_claim('s', 'savepoint');
	ROLLBACK TO a;
	SELECT idem_claim('s', 'savepoint');
	SELECT idem_finish('s', 'savepoint', state => 'released');
	COMMIT;
	SELECT idem_claim('s', 'savepoint', ${leased}5');
	SELECT idem_takeover('s', 'lapsed', lease => '1 ms');
	SELECT idem_forget('s', 'forgotten');
	SELECT deleted FROM idem_sweep();
	SET session_replication_role = replica;
	BEGIN;
	SELECT idem_claim('s', 'as a replica');
	SELECT idem_finish('s', 'as a replica', response_body => 'done');
	COMMIT});
is_same('changes');
my $ruled = session($subscriber);
is($ruled->do('SELECT ttl FROM idem_policy'), '05:00:00', 'policies too');
on_publisher(q{UPDATE idem_policy SET ttl = '6 h'});
catch_up();
is($ruled->do(q{SELECT idem_once('ruled', 'k'); SELECT ttl FROM idem_record WHERE scope = 'ruled'; SELECT idem_forget('ruled', 'k')}),
	"t\n06:00:00\nt", 'and their changes, to sessions that are at work');
$ruled->quit;
is(on_publisher(q{SELECT count(*) FROM idem_record WHERE key IN ('expired', 'forgotten')}), '0', 'deletions too');
my $key_of = q{SELECT string_agg(key, ' ' ORDER BY key) FROM idem_unresolved};
is(on_subscriber($key_of), on_publisher($key_of), 'what is unresolved');
is(on_subscriber(q{SELECT outcome FROM unnest('{done,open,leased,retry,unknown,rolled back}'::text[])
		WITH ORDINALITY k (key, ord), idem_lookup('s', k.key, CASE k.key WHEN 'done' THEN 'me' ELSE '' END) ORDER BY ord}),
	"replayed\nabsent\nin_progress\nreleased\nunknown\nabsent", 'lookup sees what was committed there');

# While it receives it must not take claims: what it took stands in the way.
is(on_subscriber(q{SELECT outcome FROM idem_claim('s', 'conflict', lease => '1 d')}), 'claimed',
	'a claim on the subscriber knows nothing of those to come');
on_publisher(q{SELECT idem_once('s', 'before'); SELECT idem_claim('s', 'conflict', lease => '1 d'); SELECT idem_once('s', 'after')});
await($subscriber, 'SELECT NOT subenabled FROM pg_subscription');
is(on_subscriber(q{SELECT outcome FROM idem_lookup('s', 'after')}), 'absent', 'and replication stops at it');
on_subscriber(q{SELECT idem_forget('s', 'conflict'); ALTER SUBSCRIPTION moving ENABLE});
is_same('until it is forgotten');

# Nor must it be swept: a claim of an expired key changes the record that is there,
# and for a record that is gone a change is skipped.
on_publisher(q{SELECT idem_once('s', 'swept', ttl => '1 ms'), idem_once('s', 'also swept', ttl => '1 ms')});
catch_up();
await($subscriber, q{SELECT deleted = 2 FROM idem_sweep()});
is(on_publisher(q{SELECT outcome FROM idem_claim('s', 'swept', lease => '1 d')}), 'claimed', 'an expired key is claimed');
catch_up();
is(on_subscriber(q{SELECT outcome FROM idem_lookup('s', 'swept')}), 'absent',
	'which a subscriber does not know where it was swept');
on_publisher(q{SELECT idem_forget('s', 'swept'); SELECT deleted FROM idem_sweep()});
is_same('a deletion on either side');

# --- Only what can be replicated ----------------------------------------------------

on_publisher(q{CREATE PUBLICATION filtered FOR TABLE idem_record WHERE (state = 'succeeded')});
my $s = session($publisher);
is($s->do("SELECT idem_finish('s', 'leased', token => '${token}1')"), 'ERROR 42P10',
	'a filter that an update could not be judged by is refused as for an UPDATE');
on_publisher('DROP PUBLICATION filtered');

# --- The switch ---------------------------------------------------------------------

$open->do('COMMIT');
is($open->do(q{SELECT outcome FROM idem_lookup('s', 'open lease')}), 'absent',
	'an unfinished transactional claim refused the commit');
on_publisher(q{ALTER DATABASE postgres SET default_transaction_read_only = on});
is(session($publisher)->do(q{SELECT outcome FROM idem_claim('s', 'too late', lease => '1 d')}),
	'ERROR 25006', 'the old side is closed');
my $done = q{SELECT outcome, response_code, response_body, response_headers
	FROM idem_lookup('s', 'done', 'me')};
my $large = q{SELECT md5(response_bytes) FROM idem_lookup('s', 'large')};
my @then = map { on_publisher($_) } $done, $large;
is_same('at the switch');
on_subscriber('DROP SUBSCRIPTION moving');
$publisher->stop;

$s = session($subscriber);
is($s->do(q{SELECT outcome, response_code, response_body, response_headers
		FROM idem_claim('s', 'done', 'me', '{"a": 1.0}')}), $then[0], 'what was done replays, byte for byte');
is($s->do($large), $then[1], 'so does a large response');
is($s->do(q{SELECT outcome FROM idem_claim('s', 'done', 'me', '{"a": 2}')}), 'mismatch', 'to its own request only');
is($s->do(q{SELECT outcome FROM idem_claim('s', 'leased', lease => '1 h')}), 'in_progress', 'a live lease holds');
is($s->do("SELECT idem_finish('s', 'leased', token => '${token}1', response_body => 'ok')"), 't',
	'its owner finishes with the token from the other side');
is($s->do("SELECT idem_finish('s', 'checkpointed', token => '${token}5')"), 'ERROR ID001', 'nobody else does');
is($s->do("SELECT checkpoint, jsonb_array_length(checkpoint_data) FROM idem_takeover('s', 'checkpointed', force => true, lease => '1 h')"),
	'c|1000', 'a takeover finds the recovery point');
is($s->do(q{SELECT outcome, attempt, recovered FROM idem_claim('s', 'retry', lease => '1 h')}),
	'claimed|2|t', 'what may be retried is');
is($s->do("SELECT idem_finish('s', 'retry', token => '${token}2')"), 'ERROR ID001', 'which fences the owner from the other side');
is($s->do(q{SELECT outcome FROM idem_claim('s', 'unknown', lease => '1 h')}), 'unknown', 'unknown is unknown');
is($s->do(q{SELECT outcome FROM idem_resolve('s', 'lapsed', state => 'failed')}), 'replayed', 'and can be resolved');
is($s->do(q{SELECT idem_once('s', 'race')}), 'f', 'once is once');
is($s->do(q{BEGIN; SELECT outcome FROM idem_claim('s', 'new'); SELECT idem_finish('s', 'new'); COMMIT}),
	"claimed\nt", 'new claims are taken');

$subscriber->stop;
done_testing();
