# shellcheck shell=bash
#
# Finding a PostgreSQL, and building the extension against it.
#
#   pg_bindir VERSION
#       Print the directory of the programs of an installed server of that
#       major version that can be built against; status 1 if there is none.
#
#   pg_major PG_CONFIG
#       Print the major version that a pg_config speaks for.
#
#   copy_source FROM TO
#       Copy the source tree, without its history and build products, for the
#       server user.  copy_tree does the same and changes no owner.
#
#   build_extension SOURCE PG_CONFIG [MAKE-ARGUMENT...]
#       Build in SOURCE, as the server user.  Says what the compiler says, up to
#       the length at which only the first lines still matter.
#
#   private_server DIR PG_CONFIG
#       Lay a private copy of that installation under DIR and print the path
#       of its pg_config.
#
#   install_extension SOURCE DIR PG_CONFIG [MAKE-ARGUMENT...]
#       Install what was built in SOURCE into the private copy under DIR
#       (PG_CONFIG: of the original).
#
# Tests must not change the machine that they run on, need no right to write
# to the system's directories, and two runs must not overwrite each other's
# library.  So the extension is installed into a private copy of the server.
# That works because PostgreSQL finds its libraries and its share directory by
# their place relative to the running program: the programs are copied (they
# resolve symbolic links to find themselves), all the rest is links.  It is
# what PostgreSQL's own "make check" does, from an installed server.

pg_bindir()
{
	local dir

	for dir in "/usr/lib/postgresql/$1/bin" "/usr/pgsql-$1/bin"; do
		if [[ -x $dir/postgres && -x $dir/pg_config &&
			-e $("$dir/pg_config" --pgxs) ]]; then
			printf '%s\n' "$dir"
			return
		fi
	done
	return 1
}

pg_major()
{
	"$1" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/'
}

copy_source()
{
	copy_tree "$1" "$2"
	give_to_server_user "$2"
}

copy_tree()
{
	mkdir -p "$2"
	tar -C "$1" -cf - --exclude=./.git --exclude='*.o' --exclude='*.bc' \
		--exclude='*.so' --exclude=./tmp_check --exclude=./output_iso \
		--exclude=./results --exclude=__pycache__ --exclude=node_modules . |
		tar -C "$2" --no-same-owner -xf -
}

build_extension()
{
	local status=0 log=$work_dir/build.log

	as_server_user make --silent --directory="$1" PG_CONFIG="$2" "${@:3}" \
		>"$log" 2>&1 || status=$?
	head -n 60 "$log"
	return "$status"
}

private_server()
{
	local dir=$1 pg_config=$2 bindir part

	bindir=$("$pg_config" --bindir)
	mkdir -p "$dir$bindir"
	cp "$bindir"/* "$dir$bindir"
	for part in "$("$pg_config" --pkglibdir)" "$("$pg_config" --sharedir)"; do
		mkdir -p "$dir${part%/*}"
		cp --recursive --symbolic-link "$part" "$dir$part"
		# A copy that somebody installed in the system is not what is tested.
		find "$dir$part" -name 'idempotency*' -prune -exec rm -r {} +
	done
	give_to_server_user "$dir"
	printf '%s\n' "$dir$bindir/pg_config"
}

install_extension()
{
	as_server_user make --silent --directory="$1" PG_CONFIG="$3" \
		DESTDIR="$2" "${@:4}" install
}
