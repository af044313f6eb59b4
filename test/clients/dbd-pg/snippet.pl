use strict;
use warnings;
use DBI;
use JSON::PP;

my $db = DBI->connect('dbi:Pg:', '', '', { AutoCommit => 1, RaiseError => 1, PrintError => 0 });

sub transaction
{
	my ($work) = @_;
	$db->begin_work;
	my $result = eval { my $r = $work->(); $db->commit; $r };
	if (my $error = $@)
	{
		$db->rollback unless $db->{AutoCommit};
		die $error;
	}
	return $result;
}

sub create_order
{
	my ($key, $user, $order) = @_;
	return answer(transaction(sub {
		my $claim = $db->selectrow_hashref(
			q{SELECT outcome, response_code AS code, response_body AS body
			  FROM idem_claim('create_order', $1, $2, request => $3, wait => '1 s')},
			undef, $key, $user, encode_json($order));
		if ($claim->{outcome} eq 'claimed')
		{
			my ($id) = $db->selectrow_array(
				'INSERT INTO orders (customer, item) VALUES ($1, $2) RETURNING id',
				undef, $user, $order->{item});
			@$claim{qw(code body)} = (201, qq({"order": $id}));
			$db->do(q{SELECT idem_finish('create_order', $1, $2, response_code => $3, response_body => $4)},
				undef, $key, $user, @$claim{qw(code body)});
		}
		return $claim;
	}));
}

sub charge
{
	my ($key, $user, $amount) = @_;
	my $claim = $db->selectrow_hashref(
		q{SELECT outcome, token, response_code AS code, response_body AS body
		  FROM idem_claim('charge', $1, $2, request => $3, lease => '60 s')},
		undef, $key, $user, encode_json({ amount => $amount }));
	if ($claim->{outcome} eq 'claimed')
	{
		my $reference = ask_provider($amount);    # outside of any transaction
		@$claim{qw(code body)} = (201, encode_json({ charge => $reference }));
		transaction(sub {
			$db->do('INSERT INTO payments VALUES ($1, $2, $3)', undef, $key, $reference, $amount);
			$db->do(q{SELECT idem_finish('charge', $1, $2, token => $3, response_code => $4,
				response_body => $5)}, undef, $key, $user, @$claim{qw(token code body)});
		});
	}
	return answer($claim);
}

sub answer
{
	my ($claim) = @_;
	return "$claim->{code} $claim->{body}" if $claim->{outcome} =~ /^(claimed|replayed)$/;
	return ($claim->{outcome} eq 'mismatch' ? '422 ' : '409 ') . $claim->{outcome};
}

sub ask_provider { return "ch_$_[0]" }

for (1 .. 2)
{
	print create_order('k-1', '42', { item => 'tea' }), "\n";
	print charge('k-2', '42', 500), "\n";
}
