# Responses as large as they may be: one at the limit comes back as it went in,
# one past it is an error at the finish, which leaves the claim owned, and what
# the largest limit lets in can be read in its longest form, dumped and restored.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('large');
my $s = session($node);
my $finish = q{SELECT idem_finish('s', 'k', token => token, response_body => %s) FROM idem_record WHERE key = 'k'};

# --- The limit as it is set ---------------------------------------------------------

my $limit = 64 * 1024 * 1024;
$s->do(q{SELECT idem_claim('s', 'k', lease => '1 h')});
for my $size (600 * 1024 * 1024, $limit + 1)
{
	is($s->do(sprintf $finish, "repeat('x', $size)"), 'ERROR 54000', "$size bytes are refused");
	is($s->do(q{SELECT outcome FROM idem_lookup('s', 'k')}), 'in_progress', 'and the claim is still owned');
}
is($s->do(sprintf $finish, "repeat('0123456789abcdef', $limit / 16)"), 't', "$limit bytes are stored");
is($s->do(qq{SELECT outcome, response_body = repeat('0123456789abcdef', $limit / 16) FROM idem_claim('s', 'k')}),
	'replayed|t', 'and replayed');

# --- The largest limit ------------------------------------------------------------------
# 3 GB of memory and a minute: only in the long run.

if ($ENV{TEST_LONG})
{
	my $largest = $s->do(q{SELECT max_val FROM pg_settings WHERE name = 'idempotency.max_response'});
	$s->do("SET idempotency.max_response = $largest; SELECT idem_claim('s', 'largest', lease => '1 h')");
	# a backslash takes two in a dump, a byte two digits
	is($s->do(qq{SELECT idem_checkpoint('s', 'largest', token => token, checkpoint => repeat(chr(92), $largest)) IS NOT NULL
			FROM idem_record WHERE key = 'largest'}), 't', "a checkpoint of $largest bytes");
	is($s->do(qq{SELECT idem_finish('s', 'largest', token => token, response_bytes => decode(repeat('00', $largest), 'hex'))
			FROM idem_record WHERE key = 'largest'}), 't', 'and as large a response');
	is($s->do(q{SELECT length(response_bytes::text) FROM idem_lookup('s', 'largest')}), 2 + 2 * $largest, 'can be sent as text');

	my @server = ('--host', $node->host, '--port', $node->port);
	my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
	command_ok([ 'pg_dump', @server, '--format=custom', '--compress=1', '--file', $dump, 'postgres' ], 'dumped');
	$node->safe_psql('postgres', 'CREATE DATABASE restored');
	command_ok([ 'pg_restore', @server, '--exit-on-error', '--dbname', 'restored', $dump ], 'and restored');
}

$s->quit;
$node->stop;
done_testing();
