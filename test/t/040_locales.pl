# Identities are compared byte by byte, whatever the database's encoding,
# locale and provider: look-alikes are different keys, and no change of a
# collation library can merge two keys or lose one.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Locales of the C library that are not installed are made, where their
# sources are.
my $locpath = PostgreSQL::Test::Utils::tempdir();
for my $locale (qw(en_US tr_TR))
{
	system("localedef --inputfile=$locale --charmap=UTF-8 $locpath/$locale.UTF-8 >/dev/null 2>&1");
}
$ENV{LOCPATH} = $locpath if -d "$locpath/en_US.UTF-8";

my $node = PostgreSQL::Test::Cluster->new('locales');
$node->init;
$node->start;

# Each list: spellings that some collation, normalization or cast takes for
# the same.  Written as bytes in hexadecimal.
my %look_alikes = (
	'composed and decomposed' => [qw(c3a9 65cc81)],
	'case' => [qw(6b6579 4b6579 4b4559)],
	'trailing spaces' => [qw(6b 6b20 6b2020 206b 6bc2a0 6be38080)],
	'Latin and Cyrillic' => [qw(61 d0b0)],
	'the three spellings of an angstrom' => [qw(c385 41cc8a e284ab)],
	'invisible characters' => [qw(6b6579 6be2808b6579 6b65cc8079 efbbbf6b6579 6bc2ad6579)],
	'ligatures and full width' => [qw(66692b efac812b efbd86efbd89efbc8b)],
	'sharp s' => [qw(737373 c39f73 73c39f e1ba9e73)],
	'Turkish i' => [qw(69 49 c4b0 c4b1)],
	'digits' => [qw(31 d9a1 efbc91 c2b9 e291a0)],
	'punctuation that collations ignore' => [qw(6162 612d62 612e62 61e2809062)],
	'order of combining marks' => [qw(61cc81cca3 61cca3cc81)],
	'beyond the basic plane' => [qw(f09f9880 f09f9881 f09d9493)],
);
my @keys = map { @$_ } values %look_alikes;

sub claim
{
	my ($part, $bytes, $encoding) = @_;
	my %identity = (scope => "'s'", key => "'k'", principal => "''");
	$identity{$part} = "convert_from('\\x$bytes', '$encoding')";
	return "BEGIN; SELECT outcome FROM idem_claim($identity{scope}, $identity{key}, $identity{principal});
		SELECT idem_finish($identity{scope}, $identity{key}, $identity{principal}, response_body => '$bytes'); COMMIT;";
}

sub replay
{
	my ($part, $bytes, $encoding) = @_;
	my ($claim) = claim(@_) =~ /(idem_claim\(.*\));/;
	return "SELECT outcome, response_body FROM $claim;";
}

sub check_database
{
	my ($db, $encoding, @all) = @_;
	$node->safe_psql($db, 'CREATE EXTENSION idempotency');
	my $s = session($node, dbname => $db);
	$s->do('SET client_min_messages = error');
	for my $part (qw(scope key principal))
	{
		my %seen;
		my @unique = grep { !$seen{$_}++ } @all;
		is($s->do(join ' ', map { claim($part, $_, $encoding) } @unique),
			join("\n", map { ('claimed', 't') } @unique),
			"$db: look-alikes are claimed one by one ($part)");
		is($s->do(join ' ', map { replay($part, $_, $encoding) } @unique),
			join("\n", map { "replayed|$_" } @unique), "$db: and replay their own response");
	}
	is( $s->do(q{SELECT count(*) FROM pg_index, pg_attribute a
			WHERE indrelid = 'idem_record'::regclass AND indisunique AND a.attrelid = indrelid
				AND a.attnum = ANY (indkey) AND a.attcollation = '"C"'::regcollation
				AND NOT EXISTS (SELECT FROM unnest(indcollation) c WHERE c <> '"C"'::regcollation)}),
		'3', "$db: the identity index uses no collation that can change");
	return $s;
}

# --- UTF-8, with whatever locales this system has -------------------------------------

my %locales = (
	c => q{LOCALE 'C'},
	english => q{LOCALE 'en_US.UTF-8'},
	turkish => q{LOCALE 'tr_TR.UTF-8'},
	c_utf8 => q{LOCALE 'C.UTF-8'},
	icu => q{LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'und-u-ks-level1'},
	icu_turkish => q{LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'tr-u-ka-shifted'},
);
$locales{builtin} = q{LOCALE 'C' LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'}
  if $node->safe_psql('postgres', 'SHOW server_version_num') >= 170000;
for my $db (sort keys %locales)
{
  SKIP:
	{
		my ($ret, undef, $err) =
		  $node->psql('postgres', "CREATE DATABASE $db TEMPLATE template0 ENCODING 'UTF8' $locales{$db}");
		skip "no database with $locales{$db}: " . (split /\n/, $err)[0], 1 if $ret != 0;
		my $s = check_database($db, 'UTF8', @keys);
		$s->quit;
	}
}

# A column or a call with another collation does not change what a key is.
my $s = session($node, dbname => 'c');
SKIP:
{
	skip 'this server has no ICU', 1
	  unless $s->do(q{SELECT count(*) > 0 FROM pg_collation WHERE collprovider = 'i'}) eq 't';
	is( $s->do(q{CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
			SELECT 'KEY' = 'key' COLLATE loose}), 't', 'a collation to which case is nothing');
	is( $s->do(q{SELECT outcome FROM idem_claim('loose', 'KEY' COLLATE loose, lease => '1 h');
			SELECT outcome FROM idem_claim('loose', 'key' COLLATE loose, lease => '1 h');
			SELECT outcome FROM idem_claim('loose', 'KEY', lease => '1 h')}),
		"claimed\nclaimed\nin_progress", 'does not merge keys');
	is( $s->do(q{SELECT string_agg(k, ' ') FROM idem_once_batch('loose', ARRAY['b', 'B', 'a', 'b'] COLLATE loose) k}),
		'B a b', 'nor those of a batch');
}
$s->quit;

# --- Other encodings ---------------------------------------------------------------------------

# e acute in both cases, sharp s, y diaeresis, and what a client of another encoding sends for them.
$node->safe_psql('postgres', q{CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'});
$s = check_database('latin1', 'LATIN1', qw(e9 c9 df ff 65 a0 20a0 61));
is( $s->do(qq{SET client_encoding = 'UTF8'; SELECT outcome, response_body FROM idem_claim('s', '\xc3\xa9')}),
	'replayed|e9', 'latin1: the same character sent in UTF-8 is the same key');
is($s->do(qq{SELECT outcome FROM idem_claim('s', '\xe2\x82\xac')}), 'ERROR 22P05',
	'latin1: a character that it does not have is the server\'s own error');
is( $s->do(q{SELECT outcome FROM idem_claim('r', 'k', '', '{"a": "\u00e9"}', lease => '1 h');
		SELECT outcome FROM idem_claim('r', 'k', '', jsonb_build_object('a', convert_from('\xe9', 'LATIN1')));
		SELECT outcome FROM idem_claim('r', 'k', '', '{"a": "e"}')}),
	"claimed\nin_progress\nmismatch", 'latin1: requests are compared as what they say');
$s->quit;

# Two bytes for each character, and single shifts.
$node->safe_psql('postgres', q{CREATE DATABASE euc_jp TEMPLATE template0 ENCODING 'EUC_JP' LOCALE 'C'});
my $t = check_database('euc_jp', 'EUC_JP', qw(a4a2 a5a2 8eb1 61 a1a1 2061 c6fc cbdc c6fccbdc 8fb0a1));
is( $t->do(qq{SET client_encoding = 'UTF8'; SELECT outcome, response_body FROM idem_claim('s', '\xe6\x97\xa5')}),
	'replayed|c6fc', 'euc_jp: the same character sent in UTF-8 is the same key');
is( $t->do(q{SELECT outcome FROM idem_claim('s', repeat(convert_from('\xc6fc', 'EUC_JP'), 127), lease => '1 h');
		SELECT outcome FROM idem_claim('s', repeat(convert_from('\xc6fc', 'EUC_JP'), 128), lease => '1 h')}),
	"claimed\nERROR 22023", 'euc_jp: its bytes are counted');
$t->quit;

# What a request says has one fingerprint, and a key its own bytes, in all of them.
my $e_acute = "SELECT outcome FROM idem_claim('move', convert_from('\\xe9', 'LATIN1'), '',
	jsonb_build_object('name', 'Ren' || convert_from('\\xe9', 'LATIN1')), lease => '1 h')";
my $said = "SELECT encode(fingerprint, 'hex'), octet_length(key), length(key) FROM idem_record WHERE scope = 'move'";
for my $db (qw(latin1 c))
{
	is($node->safe_psql($db, $e_acute), 'claimed', "$db: a name with an accent");
}
is($node->safe_psql('latin1', $said), $node->safe_psql('c', $said) =~ s/\|2\|1$/|1|1/r,
	'latin1 and UTF-8: one fingerprint, one character, each in its own bytes');

# Records move between encodings as what they say; a key that is too long in
# the bytes of the other one stops the move.
my @server = ('--host', $node->host, '--port', $node->port);
my $dump = PostgreSQL::Test::Utils::tempdir() . '/latin1';
command_ok([ 'pg_dump', @server, '--format=custom', '--file', $dump, 'latin1' ], 'latin1: dumped');
$node->safe_psql('postgres', q{CREATE DATABASE moved TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'});
command_ok([ 'pg_restore', @server, '--exit-on-error', '--dbname', 'moved', $dump ], 'latin1: restored in UTF-8');
is($node->safe_psql('moved', $e_acute), 'in_progress', 'moved: the key is there, and the request matches');
is( $node->safe_psql('moved', q{SELECT outcome, response_body FROM idem_claim('s', convert_from('\xc3a9', 'UTF8'))}),
	'replayed|e9', 'moved: and the responses');
is( $node->safe_psql('latin1', q{SELECT outcome FROM idem_claim('s', repeat(convert_from('\xe9', 'LATIN1'), 255), lease => '1 h')}),
	'claimed', 'latin1: 255 characters are 255 bytes');
command_ok([ 'pg_dump', @server, '--format=custom', '--file', "$dump.long", 'latin1' ], 'latin1: dumped with that key');
$node->safe_psql('moved', 'TRUNCATE idem_record');
command_fails_like([ 'pg_restore', @server, '--data-only', '--dbname', 'moved', "$dump.long" ],
	qr/idem_record_identity_check/, 'moved: a key of 510 bytes is refused, not cut');

# Bytes without an encoding: also such as are no characters of any.
$node->safe_psql('postgres', q{CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'});
$s = check_database('ascii', 'SQL_ASCII', @keys, qw(e9 ff80 80 c3 ed a0));
is( $s->do(q{SELECT outcome FROM idem_claim('s', convert_from(decode(repeat('ff', 255), 'hex'), 'SQL_ASCII'), lease => '1 h')}),
	'claimed', 'ascii: 255 bytes are 255 bytes');
$s->quit;

# The limit is one of bytes, not of characters.
$s = session($node, dbname => 'c');
is( $s->do(q{SET client_encoding = 'UTF8';
		SELECT outcome FROM idem_claim('s', repeat(convert_from('\xc3a9', 'UTF8'), 127), lease => '1 h');
		SELECT outcome FROM idem_claim('s', repeat(convert_from('\xc3a9', 'UTF8'), 128), lease => '1 h')}),
	"claimed\nERROR 22023", '254 bytes are accepted, 256 are not');
$s->quit;

$node->stop;
done_testing();
