# shellcheck shell=bash disable=SC2034,SC2154
#
# Every example of the documents is run, and shows what the document shows.

suite_files[docs]='test/docs/check.py'

packages_docs()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg \
		python:psycopg2=python3-psycopg2 python:django=python3-django \
		ruby:pg=ruby-pg ruby:active_record=ruby-activerecord \
		javac=default-jdk-headless \
		/usr/share/java/postgresql.jar=libpostgresql-jdbc-java \
		/usr/share/java/spring3-aop.jar=libspring-aop-java \
		/usr/share/java/spring3-jdbc.jar=libspring-jdbc-java
	foreign_node || echo node:pg=node-pg
}

# Where the package nodejs is NodeSource's, Debian's node-pg cannot be installed
# beside it.  There the example for Node wants "npm install --global pg", and is
# skipped without.
foreign_node()
{
	[[ $(dpkg-query --show --showformat='${Version}' nodejs 2>/dev/null) == *nodesource* ]]
}

suite_docs()
{
	prove_programs "$@"
}
