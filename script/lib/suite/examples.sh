# shellcheck shell=bash disable=SC2034,SC2154
#
# The examples are programs that check themselves.

suite_files[examples]='examples/*/run.py'

packages_examples()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg python:psycopg_pool=python3-psycopg-pool \
		python:flask=python3-flask
}

# An example makes the database that it wants by itself.
suite_examples()
{
	local file status=0

	for file in "$@"; do
		as_server_user prove "${prove_flags[@]}" --exec '' "$file" :: --tap || status=1
	done
	return "$status"
}
