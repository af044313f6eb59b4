# The fingerprint of a request does not depend on the database it is computed
# in: server encodings, parallel workers, and an independent implementation
# (test/fingerprint/canonical.py) all agree.  Documents are generated; set
# FINGERPRINT_SEED to the printed seed to get the same ones again.
use strict;
use warnings;

use FindBin;
use IPC::Run qw(run);
use List::Util qw(shuffle);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $canonical = "$FindBin::RealBin/../fingerprint/canonical.py";
my $manual = "$FindBin::RealBin/../../docs/fingerprint.md";
my $seed = srand($ENV{FINGERPRINT_SEED} // time ^ $$);
note "FINGERPRINT_SEED=$seed";

my $node = PostgreSQL::Test::Cluster->new('fingerprint');
$node->init;
$node->start;

# --- Generated documents ----------------------------------------------------

# Characters that jsonb and JSON text treat in some special way, and the like.
my @ascii = ('a' .. 'd', 'Z', '0', '9', ' ', '"', '\\', '/', '{', "'",
	map { chr } 1, 8, 9, 10, 12, 13, 31, 127);

sub any { return $_[ int rand @_ ] }

sub random_string
{
	my ($letters) = @_;
	return join '', map { any(@$letters) } 1 .. int(rand() * rand() * 12);
}

# A number is sign, digits and a power of ten; it is spelled in many ways.
sub random_number
{
	my $digits = any(0, 1, 10, 10000, 9007199254740993,
		any(1 .. 9) . join '', map { int rand 10 } 1 .. rand 45);
	my $power = any(0, 0, int(rand 12) - 6, int(rand 18000) - 9000);
	return { type => 'number', sign => any('', '-'), digits => $digits, power => $power };
}

sub random_value
{
	my ($depth, $letters) = @_;
	my $kind = int rand($depth > 0 ? 10 : 6);

	return { type => 'word', word => any(qw(null true false)) } if $kind == 0;
	return random_number() if $kind < 3;
	return { type => 'string', string => random_string($letters) } if $kind < 6;
	my $count = any(0, 1, 2, 5, 9);
	return {
		type => 'array',
		items => [ map { random_value($depth - 1, $letters) } 1 .. $count ]
	} if $kind < 7;
	return {
		type => 'object',
		pairs => {
			map { random_string($letters) => random_value($depth - 1, $letters) }
			  1 .. $count
		}
	};
}

# --- Any of the JSON texts that mean a value ---------------------------------

sub space { return any('', '', ' ', "\t ") }

sub escaped
{
	my ($code) = @_;
	return sprintf(any('\u%04x', '\u%04X'), $code) if $code < 0x10000;
	$code -= 0x10000;
	return sprintf '\u%04x\u%04x', 0xD800 + ($code >> 10), 0xDC00 + ($code & 0x3FF);
}

sub spell_string
{
	my ($string, $escape_letters) = @_;
	my %short = ("\n" => '\n', "\t" => '\t', '"' => '\"', '\\' => '\\\\', '/' => '\/');
	my $text = '';
	for my $letter (split //, $string)
	{
		my $code = ord $letter;
		my $may_escape = $code < 128 || $escape_letters;
		my $may_stand = $code > 31 && $letter !~ /["\\]/;
		if    ($short{$letter} && rand() < 0.5) { $text .= $short{$letter} }
		elsif ($may_stand && !($may_escape && rand() < 0.2)) { $text .= $letter }
		else                                    { $text .= escaped($code) }
	}
	return qq("$text");
}

sub spell_number
{
	my ($number) = @_;
	my $zeros = $number->{digits} eq '0' ? 0 : int rand 6;
	my $digits = $number->{digits} . '0' x $zeros;
	my $power = $number->{power} - $zeros;
	my $before = 1 + int rand length $digits;

	return $number->{sign} . $digits if $power == 0 && rand() < 0.5;
	my $text = $number->{sign} . substr $digits, 0, $before;
	$text .= '.' . substr $digits, $before if $before < length $digits;
	$power += length($digits) - $before;
	return $text . any('e', 'E') . ($power < 0 ? '' : any('', '+')) . $power;
}

sub spell
{
	my ($value, $escape_letters) = @_;
	my $type = $value->{type};
	my $text =
		$type eq 'word'   ? $value->{word}
	  : $type eq 'number' ? spell_number($value)
	  : $type eq 'string' ? spell_string($value->{string}, $escape_letters)
	  : $type eq 'array'
	  ? '[' . join(',', map { spell($_, $escape_letters) } @{ $value->{items} }) . space() . ']'
	  : '{' . join(',',
		map {
			space() . spell_string($_, $escape_letters) . space() . ':'
			  . spell($value->{pairs}{$_}, $escape_letters)
		} shuffle sort keys %{ $value->{pairs} }) . '}';
	return space() . $text . space();
}

# --- Databases ----------------------------------------------------------------

sub create_database
{
	my ($encoding) = @_;
	my $dbname = lc "fp_$encoding";
	$node->safe_psql('postgres',
		"CREATE DATABASE $dbname TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'");
	$node->safe_psql($dbname, 'CREATE EXTENSION idempotency');
	return $dbname;
}

sub fingerprint
{
	my ($dbname, $expression) = @_;
	return $node->safe_psql($dbname,
		"SELECT encode(idem_fingerprint($expression), 'hex')");
}

sub reference
{
	my ($file) = @_;
	my $output;
	run [ 'python3', $canonical ], '<', $file, '>', \$output
	  or die "$canonical failed";
	return split /\n/, $output;
}

# Non-ASCII letters of each encoding: such as take another number of bytes in
# UTF-8, and sort in another order there.
my %letters = (
	UTF8 => [ map { chr } 0x80, 0xE9, 0x301, 0x20AC, 0x65E5, 0xFFFD, 0x1F600, 0x10FFFD ],
	LATIN1 => [ map { chr } 0x80, 0xA0, 0xC5, 0xDF, 0xE9, 0xFF ],
	WIN1252 => [ map { chr } 0x20AC, 0x152, 0x178, 0xC5, 0xE9, 0xFF ],
	EUC_JP => [ map { chr } 0x3042, 0x65E5, 0x672C, 0xFF71, 0x4E02, 0xE9 ],
	SQL_ASCII => [ map { chr } 0xE9, 0x20AC, 0x65E5, 0x1F600 ]);

for my $encoding (sort keys %letters)
{
	my $dbname = create_database($encoding);
	my $file = $node->basedir . "/$encoding.json";
	my @letters = (@ascii, @{ $letters{$encoding} }, @{ $letters{$encoding} });
	my @docs;

	# Each document twice, in two spellings.
	for (1 .. 200)
	{
		my $value = random_value(4, \@letters);
		push @docs, spell($value, $encoding ne 'SQL_ASCII') for 1 .. 2;
	}
	open my $out, '>:encoding(UTF-8)', $file or die "$file: $!";
	print $out "$_\n" for @docs;
	close $out or die "$file: $!";

	# The CSV format leaves backslashes alone; no quote or delimiter occurs.
	$node->safe_psql($dbname, qq(
		CREATE TABLE docs (id int GENERATED ALWAYS AS IDENTITY, doc text, fingerprint bytea);
		COPY docs (doc) FROM '$file'
			WITH (FORMAT csv, ENCODING 'UTF8', QUOTE E'\\x01', DELIMITER E'\\x02');
		UPDATE docs SET fingerprint = idem_fingerprint(doc::jsonb)));
	my @got = split /\n/, $node->safe_psql($dbname,
		"SELECT encode(fingerprint, 'hex') FROM docs ORDER BY id");
	my @expected = reference($file);
	is(scalar @got, scalar @docs, "$encoding: all documents have a fingerprint");
	my @wrong = grep { $got[$_] ne $expected[$_] || $got[$_] ne $got[ $_ ^ 1 ] } 0 .. $#docs;
	is(scalar @wrong, 0, "$encoding: fingerprints are those of canonical.py (seed $seed)")
	  or diag map { "$docs[$_]\n  got $got[$_], expected $expected[$_]\n" }
	  splice @wrong, 0, 3;
	cmp_ok(scalar keys %{ { map { $_ => 1 } @got } }, '>', 100,
		"$encoding: documents were many");
}

# --- The same document everywhere ----------------------------------------------

# Pinned, as in sql/fingerprint.sql.  In LATIN1 and WIN1252 the first key is
# the shorter, in UTF-8 the second is.
my $document = q('{"\u00e9": "\u00e9\u00ff", "z": [{"\u00e9\u00e9": 1, "zzz": 2.50}]}');
my $pinned = '21d516826b62959fe2fc5a042125255ee6b0fbcbd80d9c9a8b566921e20a7b3d';
is(fingerprint(lc "fp_$_", $document), $pinned, "$_: pinned fingerprint")
  for qw(UTF8 LATIN1 WIN1252 EUC_JP);
is(fingerprint('fp_sql_ascii', qq(convert_from(convert_to(
		E'{"\\xc3\\xa9": "\\xc3\\xa9\\xc3\\xbf", "z": [{"\\xc3\\xa9\\xc3\\xa9": 1, "zzz": 2.50}]}',
		'SQL_ASCII'), 'SQL_ASCII')::jsonb)),
	$pinned, 'SQL_ASCII: bytes are taken as they are');

isnt(fingerprint('fp_utf8', q('"\u00e9"')), fingerprint('fp_utf8', q('"e\u0301"')),
	'composed and decomposed characters differ');

# EUC_JP has two codes for U+22A5, so an object may have it as a key twice.
my $twice = q(jsonb_build_object(convert_from('\xa2dd', 'EUC_JP'), %d,
	convert_from('\xadf6', 'EUC_JP'), %d));
isnt(fingerprint('fp_euc_jp', sprintf $twice, 1, 2),
	fingerprint('fp_euc_jp', sprintf $twice, 2, 1),
	'keys that become one in UTF-8 keep their order');

# --- Text that has no UTF-8 -------------------------------------------------------

my ($status, $stdout, $stderr) = $node->psql('fp_win1252',
	'\set VERBOSITY verbose' . "\nSELECT idem_fingerprint(to_jsonb(chr(129)))");
like($stderr, qr/ERROR:  22P05:/, 'a byte that means nothing in WIN1252');

my $mule = create_database('MULE_INTERNAL');
is(fingerprint($mule, q('{"b": 1, "aa": [true]}')),
	fingerprint('fp_utf8', q('{"b": 1, "aa": [true]}')),
	'MULE_INTERNAL: ASCII is ASCII');
($status, $stdout, $stderr) = $node->psql($mule, '\set VERBOSITY verbose' . q(
	SELECT idem_fingerprint(to_jsonb(convert_from('\x81e9', 'MULE_INTERNAL')))));
like($stderr, qr/ERROR:  0A000: .*MULE_INTERNAL/, 'MULE_INTERNAL: else refused');

# --- Parallel workers ------------------------------------------------------------

for my $dbname (qw(fp_utf8 fp_latin1))
{
	my $result = $node->safe_psql($dbname, q(
		SET parallel_setup_cost = 0;
		SET parallel_tuple_cost = 0;
		SET parallel_leader_participation = off;
		ALTER TABLE docs SET (parallel_workers = 2);
		EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)
			SELECT FROM docs WHERE fingerprint = idem_fingerprint(doc::jsonb);
		SELECT 'agree ' || count(*) FROM docs WHERE fingerprint = idem_fingerprint(doc::jsonb)));
	like($result, qr/Workers Launched: [12]/, "$dbname: workers ran");
	like($result, qr/^agree 400$/m, "$dbname: workers agree");
}

# --- The manual ---------------------------------------------------------------------

# Its code blocks by their language.
my %block = slurp_file($manual) =~ /^```(\w+)\n(.*?)^```\n/msg;
is($block{python}, slurp_file($canonical), 'the manual shows canonical.py');
my $form;
run [ 'python3', $canonical, '--form' ], '<', \$block{json}, '>', \$form;
$block{hex} =~ s/ {2,}.*//g;
$block{hex} =~ s/ |\n//g;
is("$block{hex}\n", $form, "the manual's example has the form it shows");
is($block{sha256}, fingerprint('fp_utf8', "'$block{json}'") . "\n",
	"the manual's example has the fingerprint it shows");

$node->stop;
done_testing();
