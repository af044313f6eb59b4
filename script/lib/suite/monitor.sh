# shellcheck shell=bash disable=SC2034,SC2154
#
# What monitoring sees: the cost of the views, the real exporter, and the alert
# rules in Prometheus's own test tool.

suite_files[monitor]='test/monitor/*.py'

packages_monitor()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg \
		promtool=prometheus prometheus-postgres-exporter=prometheus-postgres-exporter
}

suite_monitor()
{
	prove_programs "$@"
}
