# shellcheck shell=bash
#
# npm packages, outside of the repository.
#
#   npm_modules DIRECTORY NAME
#       Install what DIRECTORY/package-lock.json fixes and set node_modules to
#       where it is.  Kept as long as the lock file stays the same; one process
#       installs while others wait.
#
# They are kept under $IDEMPOTENCY_NPM_CACHE, by default the user's or the
# system's cache directory, and may be deleted at any time when not in use.

npm_modules()
{
	local from=$1 cache=${IDEMPOTENCY_NPM_CACHE:-} dir

	if [[ -z $cache ]]; then
		cache=${XDG_CACHE_HOME:-/var/cache}
		((EUID == 0)) || cache=${XDG_CACHE_HOME:-$HOME/.cache}
		cache=$cache/idempotency
	fi
	dir=$cache/$2
	mkdir -p "$dir"
	(
		flock 9
		if ! cmp --silent "$from/package-lock.json" "$dir/installed-lock.json"; then
			step "installing the npm packages of ${from##*/}"
			cp "$from/package.json" "$from/package-lock.json" "$dir/"
			(cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) ||
				exit 1
			cp "$from/package-lock.json" "$dir/installed-lock.json"
		fi
	) 9>"$dir.lock" || die "could not install the npm packages of $from"
	# shellcheck disable=SC2034
	node_modules=$dir/node_modules
}
