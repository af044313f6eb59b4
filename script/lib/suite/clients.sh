# shellcheck shell=bash disable=SC2034,SC2154
#
# Real drivers of ten kinds: one scenario, a race, and the programs to copy.

suite_files[clients]='test/clients/*.py'

packages_clients()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg python:psycopg2=python3-psycopg2 \
		pkg-config=pkg-config /usr/include/postgresql/libpq-fe.h=libpq-dev \
		go=golang-go \
		/usr/share/gocode/src/github.com/jackc/pgx/v4=golang-github-jackc-pgx-v4-dev \
		javac=default-jdk-headless /usr/share/java/postgresql.jar=libpostgresql-jdbc-java \
		ruby:pg=ruby-pg php=php-cli php:pdo_pgsql=php-pgsql perl:DBD::Pg=libdbd-pg-perl \
		node=nodejs npm=npm pgbouncer=pgbouncer
}

# Each test finds what an earlier one has compiled.
suite_clients()
{
	npm_modules "$repository/test/clients" clients-node
	ln -s "$node_modules" test/clients/node_modules
	export CLIENTS_BUILT=$work_dir/clients
	prove_programs "$@"
}
