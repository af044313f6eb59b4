# shellcheck shell=bash disable=SC2034,SC2154
#
# The protocol as a model, of which every state is visited.  No server is used.

suite_files[model]='test/model/model.py'

packages_model()
{
	printf '%s\n' prove=perl spin=spin gcc=gcc
}

suite_model()
{
	prove "${prove_flags[@]}" --exec '' "$1"
}
