# shellcheck shell=bash disable=SC2034,SC2154
#
# pgTAP: the contract of the catalog.

suite_files[pgtap]='test/pgtap/*.sql'

packages_pgtap()
{
	printf '%s\n' prove=perl \
		perl:TAP::Parser::SourceHandler::pgTAP=libtap-parser-sourcehandler-pgtap-perl
	addon_package "$1" "$2" pgtap
}

suite_pgtap()
{
	fresh_database pgtap pgtap &&
		as_server_user pg_prove "${prove_flags[@]}" --dbname=pgtap "$@"
}
