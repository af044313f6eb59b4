# Live records across major versions of PostgreSQL: what was claimed, finished,
# left unknown or expired under one version is so under the next, in every
# column, and its owners go on with their tokens.
#
# OLDER_SERVERS is the way: VERSION=PREFIX of earlier servers with the extension,
# oldest first; the server under test is its end.  Without any, a cluster is
# upgraded to another one of the same version.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $bindir = qx{pg_config --bindir};
chomp $bindir;
my ($under_test) = qx{pg_config --version} =~ /(\d+)/;

my @way = map { { version => $1, bindir => "$2/bin", install_path => $2 } if /^(\d+)=(.*)$/ }
  split ' ', $ENV{OLDER_SERVERS} // '';
@way = ({ version => $under_test, bindir => $bindir }) unless @way;
push @way, { version => $under_test, bindir => $bindir };

sub cluster
{
	my ($number) = @_;
	my $server = $way[$number];
	my $node = PostgreSQL::Test::Cluster->new("number$number",
		$server->{install_path} ? (install_path => $server->{install_path}) : ());
	my @extra = ('--encoding=UTF8', '--locale=C');

	# the default changed with 18, and pg_upgrade wants both sides alike
	push @extra, '--no-data-checksums' if $server->{version} >= 18;
	$node->init(extra => \@extra);
	$node->append_conf('postgresql.conf', "autovacuum = off\nfsync = off\n");
	return $node;
}

my $records = q{SELECT string_agg(r::text, E'\n' ORDER BY r::text COLLATE "C") FROM idem_record r};
# but for the owner's own, of which 17 knows one more
my $grants = q{
	SELECT string_agg(concat_ws(' ', m, acl), E'\n' ORDER BY m) FROM (
		SELECT oid::regprocedure::text,
			(SELECT array_agg(a::text ORDER BY a::text) FROM unnest(proacl) a)
		FROM pg_proc WHERE proname LIKE 'idem%'
		UNION ALL
		SELECT oid::regclass::text,
			(SELECT array_agg(a::text ORDER BY a::text) FROM unnest(relacl) a
				WHERE split_part(a::text, '=', 1) <> current_user)
		FROM pg_class WHERE relname LIKE 'idem%' AND relkind IN ('r', 'v')) members (m, acl)};
my $policies = q{SELECT string_agg(p::text, E'\n' ORDER BY scope) FROM idem_policy p};
my $unresolved = q{SELECT string_agg(concat_ws(' ', key, state, attempt, lease_expires_at,
	checkpoint, checkpoint_data), E'\n' ORDER BY scope, key) FROM idem_unresolved};
my $digest = q{SELECT outcome, response_code, response_headers, md5(response_body),
	md5(response_bytes), length(response_bytes) FROM};

# Every state, in a scope for each upgrade on the way, as it is used up there.
sub work
{
	my ($scope) = @_;
	return qq{
		BEGIN;
		SELECT idem_claim('$scope', 'done', 'me', '{"a": 1.0}');
		SELECT idem_finish('$scope', 'done', 'me', response_code => 201,
			response_headers => '{"h": "\\\\ \\" \\u00e9"}', response_body => E'tab\\t \\u00e9 \\\\ end');
		SELECT idem_claim('$scope', 'bytes');
		SELECT idem_finish('$scope', 'bytes', state => 'failed', response_bytes =>
			(SELECT decode(string_agg(lpad(to_hex(i), 2, '0'), ''), 'hex') FROM generate_series(0, 255) i));
		SELECT idem_claim('$scope', 'large');
		SELECT idem_finish('$scope', 'large', response_bytes =>
			(SELECT decode(string_agg(md5(i::text), ''), 'hex') FROM generate_series(1, 20000) i));
		SELECT idem_claim('$scope', 'compressed');
		SELECT idem_finish('$scope', 'compressed', response_body => repeat('0123456789', 100000));
		SELECT idem_claim('$scope', 'released');
		SELECT idem_finish('$scope', 'released', state => 'released');
		COMMIT;
		SELECT idem_claim('$scope', 'leased', lease => '1 d', ttl => '3 d 1 us');
		SELECT idem_claim('$scope', 'checkpointed', lease => '1 d');
		SELECT idem_checkpoint('$scope', 'checkpointed', token => token, checkpoint => 'charging',
			checkpoint_data => '{"reference": "ch_1"}')
			FROM idem_record WHERE scope = '$scope' AND key = 'checkpointed';
		SELECT idem_claim('$scope', 'lapsed', lease => '1 ms');
		SELECT idem_claim('$scope', 'retry', lease => '1 ms', on_abandon => 'retry');
		SELECT idem_claim('$scope', 'unknown', lease => '1 d');
		SELECT idem_finish('$scope', 'unknown', token => token, state => 'unknown')
			FROM idem_record WHERE scope = '$scope' AND key = 'unknown';
		SELECT idem_once('$scope', 'once');
		SELECT idem_once('$scope', 'expired', ttl => '1 ms');
		SELECT idem_claim('$scope', 'expired retry', lease => '1 ms', ttl => '1 ms', on_abandon => 'retry')};
}

# What must be the same on both sides.
sub state_of
{
	my ($node) = @_;
	return {
		records => $node->safe_psql('postgres', $records),
		policies => $node->safe_psql('postgres', $policies),
		grants => $node->safe_psql('postgres', $grants),
		unresolved => $node->safe_psql('postgres', $unresolved),
		version => $node->safe_psql('postgres',
			q{SELECT extversion, extnamespace::regnamespace FROM pg_extension WHERE extname = 'idempotency'}) };
}

sub upgrade
{
	my ($old, $new, $number) = @_;
	my ($from, $to) = @way[ $number - 1, $number ];

	# it leaves its scripts in the current directory
	chdir $dir or die "chdir: $!";
	return ok(run_log([ "$to->{bindir}/pg_upgrade", '--no-sync', '--old-datadir', $old->data_dir,
			'--new-datadir', $new->data_dir, '--old-bindir', $from->{bindir},
			'--new-bindir', $to->{bindir}, '--socketdir', $old->host,
			'--old-port', $old->port, '--new-port', $new->port ]),
		"pg_upgrade from $from->{version} to $to->{version}");
}

# The owners, the retries, the reconciler and the sweep go on.
sub go_on
{
	my ($node, $scope, $token, $then, $name) = @_;
	my $s = session($node, user => 'app');
	my $ops = session($node, user => 'ops');
	my $strange = '00000000-0000-4000-8000-000000000001';

	for my $key (sort keys %$then)
	{
		is($s->do("$digest idem_claim('$scope', $key)"), $then->{$key}, "$name: replay of $key, byte for byte");
	}
	is($s->do(qq{SELECT outcome FROM idem_claim('$scope', 'done', 'me', '{"a": 1}');
			SELECT outcome FROM idem_claim('$scope', 'done', 'me', '{"a": 2}')}),
		"replayed\nmismatch", "$name: fingerprints are compared as before");
	is($s->do("SELECT outcome FROM idem_claim('$scope', 'leased', lease => '1 h')"),
		'in_progress', "$name: a live lease holds");
	is($s->do("SELECT idem_finish('$scope', 'leased', token => '$strange')"),
		'ERROR ID001', "$name: a strange token is lost");
	is($s->do("SELECT idem_finish('$scope', 'leased', token => '$token->{leased}', response_body => 'late')"),
		't', "$name: the owner finishes with the token from before");
	is($s->do("SELECT idem_finish('$scope', 'leased', token => '$token->{leased}', response_body => 'late')"),
		'f', "$name: and may repeat it");
	is($s->do("SELECT outcome, response_body FROM idem_claim('$scope', 'leased')"),
		'replayed|late', "$name: which replays");
	like($s->do("SELECT idem_extend('$scope', 'checkpointed', token => '$token->{checkpointed}')"),
		qr/^\d{4}-/, "$name: another one extends its lease");
	is($s->do("SELECT outcome, attempt, recovered FROM idem_claim('$scope', 'retry', lease => '1 h')"),
		'claimed|2|t', "$name: what may be retried is");
	is($s->do("SELECT idem_finish('$scope', 'retry', token => '$token->{retry}')"),
		'ERROR ID001', "$name: which fences its owner from before");
	is($s->do("SELECT outcome, attempt, recovered FROM idem_claim('$scope', 'released', lease => '1 h')"),
		'claimed|2|f', "$name: what was released is claimed");
	is($s->do("SELECT idem_once('$scope', 'once')"), 'f', "$name: once is once");
	for my $key (qw(unknown lapsed))
	{
		is($s->do("SELECT outcome FROM idem_claim('$scope', '$key', lease => '1 h')"),
			'unknown', "$name: $key is unknown");
	}
	is($s->do("SELECT idem_finish('$scope', 'unknown', token => '$token->{unknown}', response_body => 'asked')"),
		't', "$name: its token settles it");
	is( $ops->do("SELECT outcome FROM idem_resolve('$scope', 'lapsed', state => 'succeeded', response_code => 200)"),
		'replayed', "$name: an operator resolves the other");
	is($ops->do("SELECT count(*) FROM idem_unresolved WHERE scope = '$scope'"),
		'0', "$name: nothing is unresolved");
	is($ops->do('SELECT more FROM idem_sweep()'), 'f', "$name: a sweep");
	is($node->safe_psql('postgres', qq{SELECT count(*) FROM idem_record WHERE scope = '$scope' AND key LIKE 'expired%'}),
		'0', "$name: deletes what has expired");
	is( $s->do(qq{SELECT outcome FROM idem_claim('$scope', 'expired', lease => '1 h');
			BEGIN; SELECT outcome FROM idem_claim('$scope', 'new'); SELECT idem_finish('$scope', 'new'); COMMIT}),
		"claimed\nclaimed\nt", "$name: and new claims are taken");
	$_->quit for $s, $ops;
	return;
}

my $node = cluster(0);
my @scopes = map { "upgrade $_" } 1 .. $#way;
$node->start;
$node->safe_psql('postgres', q{
	CREATE SCHEMA "I.dem";
	CREATE EXTENSION idempotency SCHEMA "I.dem";
	ALTER DATABASE postgres SET search_path = "I.dem";
	ALTER DATABASE postgres SET idempotency.ttl = '2 d';
	CREATE ROLE app LOGIN; CREATE ROLE ops LOGIN; CREATE ROLE watch LOGIN});
$node->safe_psql('postgres', q{
	SELECT idem_grant('app'), idem_grant('ops', 'operator'), idem_grant('watch', 'monitor');
	REVOKE EXECUTE ON FUNCTION idem_fingerprint FROM PUBLIC;
	INSERT INTO idem_policy (scope, ttl, role) VALUES ('ruled', '5 h', 'app')});
$node->safe_psql('postgres', work($_)) for @scopes;

my (%token, %then);
for my $scope (@scopes)
{
	for (split /\n/, $node->safe_psql('postgres', "SELECT key, token FROM idem_record WHERE scope = '$scope'"))
	{
		my ($key, $token) = split /\|/;
		$token{$scope}{$key} = $token;
	}
	for my $key (q{'done', 'me', '{"a": 1}'}, qw('bytes' 'large' 'compressed'))
	{
		$then{$scope}{$key} = $node->safe_psql('postgres', "$digest idem_claim('$scope', $key)");
	}
}
await($node, q{SELECT clock_timestamp() > max(lease_expires_at) FROM idem_record WHERE key = 'lapsed'});

for my $number (1 .. $#way)
{
	my $name = "on $way[$number]{version}";
	my $new = cluster($number);
	my $before = state_of($node);

	$node->stop;
	upgrade($node, $new, $number) or last;
	$node = $new;
	$node->start;
	is($node->safe_psql('postgres', 'SHOW server_version_num') =~ s/....$//r, $way[$number]{version},
		"$name: the version that was meant");
	my $after = state_of($node);
	for my $part (sort keys %$before)
	{
		ok($after->{$part} eq $before->{$part} && $after->{$part} ne '', "$name: $part as before");
	}
	is( $node->safe_psql('postgres', q{SELECT count(*) FROM pg_index WHERE indrelid = 'idem_record'::regclass
			AND indisvalid AND indisready}), '3', "$name: its indexes are valid");
	go_on($node, $scopes[ $number - 1 ], $token{ $scopes[ $number - 1 ] },
		$then{ $scopes[ $number - 1 ] }, $name);
	is($node->safe_psql('postgres', 'SHOW idempotency.ttl'), '2 d', "$name: settings of the database");
}
$node->stop;
done_testing();
