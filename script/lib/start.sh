# shellcheck shell=bash
#
# How a script begins that needs a server with the extension.
#
#   clean_environment
#       Forget what the environment says about other servers.
#
#   find_server
#       Settle on a server: that of pg_config if that is set, else one of the
#       major version in version, else the one that the system has or would
#       have.  Sets version; and pg_config, unless the server has yet to be
#       installed.
#
#   server_at_hand
#       Is that server installed, or can it be from this system's packages?
#       If not, the script must run itself in a root (root.sh).
#
#   install_needed LISTER
#       Install what is missing: compiler and make, the server, and what
#       LISTER VERSION SHAREDIR prints, as WHAT=PACKAGE pairs (apt.sh).
#
#   use_built_server
#       Instead of the server that was found use one of the same version that
#       is built with assertions (built.sh).
#
#   install_privately
#       Build a copy of the repository in source_dir and install it into a
#       private copy of the server, whose pg_config is private_config then.
#       Both are under work_dir, which this makes (cluster.sh).
#       build_arguments are passed to make.

build_arguments=()

# The system's programs come first, because its Perl and Python are those that
# its packages bring modules for.  LANG as well, since PostgreSQL's TAP modules
# drop LC_ALL.
clean_environment()
{
	local names=("${!PG@}" MAKEFLAGS MFLAGS MAKELEVEL)

	unset "${names[@]}"
	export LANG=C.UTF-8 LC_ALL=C.UTF-8 PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH
}

find_server()
{
	local bindir

	if [[ -n $pg_config ]]; then
		version=$(pg_major "$pg_config")
		return
	fi
	if [[ -z $version ]] && command -v pg_config >/dev/null; then
		version=$(pg_major pg_config)
	fi
	if [[ -z $version ]]; then
		version=$(packaged_server)
	fi
	[[ -n $version ]] || die "no PostgreSQL is installed, and apt knows of none;" \
		"set PG_CONFIG to the path of a server's pg_config"
	if bindir=$(pg_bindir "$version"); then
		pg_config=$bindir/pg_config
	fi
}

server_at_hand()
{
	[[ -n $pg_config || $version == "$(packaged_server)" ]]
}

install_needed()
{
	local needed=(make=make gcc=gcc /usr/include/stdio.h=libc6-dev) sharedir

	if [[ -n $pg_config ]]; then
		sharedir=$("$pg_config" --sharedir)
	else
		sharedir=/usr/share/postgresql/$version
		mapfile -t -O "${#needed[@]}" needed < <(server_packages "$version")
	fi
	mapfile -t -O "${#needed[@]}" needed < <("$1" "$version" "$sharedir")
	need_packages "${needed[@]}"
	if [[ -z $pg_config ]]; then
		pg_config=$(pg_bindir "$version")/pg_config
	fi
}

use_built_server()
{
	local needed

	mapfile -t needed < <(build_packages)
	need_packages "${needed[@]}"
	packaged_config=$pg_config
	pg_config=$(built_server "$version")
}

install_privately()
{
	new_work_dir
	source_dir=$work_dir/src
	copy_source "$repository" "$source_dir"
	# the servers' account may not be allowed to look into ours
	cd "$source_dir"
	step "building for $("$pg_config" --version)"
	build_extension "$source_dir" "$pg_config" "${build_arguments[@]}" || die "the build failed"
	private_config=$(private_server "$work_dir/pg" "$pg_config")
	if [[ -n ${packaged_config:-} ]]; then
		lend_addons "$work_dir/pg" "$packaged_config" "$pg_config"
	fi
	install_extension "$source_dir" "$work_dir/pg" "$pg_config" ||
		die "the installation failed"
}
