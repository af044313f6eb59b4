# shellcheck shell=bash disable=SC2034,SC2154
#
# The examples are programs that check themselves.

suite_files[examples]='examples/*/run.py'

packages_examples()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg \
		python:psycopg_pool=python3-psycopg-pool python:flask=python3-flask \
		node=nodejs npm=npm curl=curl \
		/usr/lib/rabbitmq/bin/rabbitmq-server=rabbitmq-server python:pika=python3-pika
}

# An example makes the database that it wants by itself.
suite_examples()
{
	local file status=0

	for file in "$@"; do
		bring_node_modules "${file%/*}"
		as_server_user prove "${prove_flags[@]}" --exec '' "$file" :: --tap || status=1
	done
	return "$status"
}

bring_node_modules()
{
	if [[ -e $1/package-lock.json ]]; then
		npm_modules "$repository/$1" "${1##*/}"
		ln -s "$node_modules" "$source_dir/$1/node_modules"
	fi
}
