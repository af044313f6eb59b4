# shellcheck shell=bash
#
# Throw-away database clusters.
#
#   new_work_dir
#       Make a directory that the server user owns and set work_dir to it.
#       remove_work_dir stops every cluster under it and removes it; call it
#       from the script's EXIT trap.
#
#   run_job COMMAND...
#       Run a command so that it ends when the script does: remove_work_dir and
#       end_job terminate it and all that it started.  The status is the
#       command's.  Without this the shell would wait for the command's end
#       before it minds a signal, or leave it running beside the clean-up.
#
#   as_server_user COMMAND...
#       Run a command as the account that owns the clusters: "postgres" when
#       called by root (a server refuses to run as root), else the caller.
#       HOME is work_dir, so nobody's .psqlrc or .pgpass has a say; so is
#       TMPDIR, and nothing is left in /tmp by a test that is killed.
#
#   give_to_server_user PATH...
#       Hand files over to that account.
#
#   cluster_start BINDIR DIR [SETTING...]
#       initdb DIR with the programs in BINDIR, append each SETTING as a line
#       of postgresql.conf and start the server.  Exports PGHOST, PGPORT and
#       PGUSER (a superuser named postgres) and puts BINDIR first on the PATH,
#       so that psql is the server's own.  The log is DIR/server.log.
#
#   cluster_stop BINDIR DIR
#       Stop the server at once; nothing of it is worth a checkpoint.
#
# The server listens on a Unix socket in DIR and on nothing else.  So no port
# has to be free, no two clusters can meet, and only the owner can connect.

new_work_dir()
{
	work_dir=$(mktemp -d "${TMPDIR:-/tmp}/idempotency.XXXXXX")
	give_to_server_user "$work_dir"
}

remove_work_dir()
{
	local pidfile

	end_job
	if [[ -z ${work_dir:-} || ! -d $work_dir ]]; then
		return 0
	fi
	while IFS= read -r -d '' pidfile; do
		stop_postmaster "$pidfile"
	done < <(find "$work_dir" -name postmaster.pid -print0)
	rm -rf "$work_dir"
}

run_job()
{
	local status=0

	"$@" </dev/null &
	job=$!
	wait "$job" || status=$?
	job=
	return "$status"
}

# Whoever gets the signal may have a server to stop first, so all of them are
# waited for, though not for ever.
end_job()
{
	local processes tries

	if [[ -z ${job:-} ]]; then
		return 0
	fi
	mapfile -t processes < <(process_tree "$job")
	kill -TERM "${processes[@]}" 2>/dev/null || true
	wait "$job" 2>/dev/null || true
	for ((tries = 0; tries < 300; tries++)); do
		kill -0 "${processes[@]}" 2>/dev/null || break
		sleep 0.1
	done
	kill -KILL "${processes[@]}" 2>/dev/null || true
	job=
}

process_tree()
{
	local children child

	printf '%s\n' "$1"
	children=$(cat "/proc/$1/task/$1/children" 2>/dev/null) || return 0
	for child in $children; do
		process_tree "$child"
	done
}

as_server_user()
{
	local environment=(HOME="$work_dir" TMPDIR="$work_dir")

	if ((EUID == 0)); then
		runuser -u postgres -- env "${environment[@]}" "$@"
	else
		env "${environment[@]}" "$@"
	fi
}

give_to_server_user()
{
	if ((EUID == 0)); then
		chown -R postgres: "$@"
	fi
}

cluster_start()
{
	local bindir=$1 dir=$2
	shift 2

	as_server_user "$bindir/initdb" --pgdata="$dir" --username=postgres \
		--auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync \
		--no-instructions >/dev/null
	printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$dir'" \
		"fsync = off" "log_line_prefix = '%m [%p] %q%a '" "$@" |
		as_server_user tee -a "$dir/postgresql.conf" >/dev/null
	export PGHOST=$dir PGPORT=65432 PGUSER=postgres PATH=$bindir:$PATH
	if ! as_server_user "$bindir/pg_ctl" start --silent --wait --pgdata="$dir" \
		--log="$dir/server.log" --options="-p $PGPORT"; then
		cat "$dir/server.log" >&2
		die "the server did not start"
	fi
}

cluster_stop()
{
	as_server_user "$1/pg_ctl" stop --silent --mode=immediate --pgdata="$2"
}

# SIGQUIT is pg_ctl's "immediate".  A test's cluster may be on its way down
# already, so the process is waited for whether or not the signal reached it.
stop_postmaster()
{
	local pid

	pid=$(head -n 1 "$1" 2>/dev/null) || return 0
	if [[ ! $pid =~ ^[0-9]+$ ]] || ! kill -QUIT "$pid" 2>/dev/null; then
		return 0
	fi
	timeout 10 tail --pid="$pid" -f /dev/null || true
}
