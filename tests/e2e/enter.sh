#!/bin/sh
# Runs a command on the node of the cluster that run.sh has started with the same CACHE, by default a shell:
#
#   sh tests/e2e/enter.sh CACHE [COMMAND [ARGUMENT…]]
set -eu

cache=$1
shift
here=$(dirname "$0")
workspace=$(cd "$here/../.." && pwd)
# shellcheck source=tests/e2e/cgroup.sh
. "$here/cgroup.sh"

# The node's first process is the one with the id 1 in its pid namespace.
group=$(cgroup_name "$cache")
first=
for hierarchy in $(cgroup_hierarchies); do
    # shellcheck disable=SC2013 # each line is a word
    for pid in $(cat "$hierarchy/$group/cgroup.procs" "$hierarchy/$group/init/cgroup.procs" 2>/dev/null); do
        if grep -q '^NSpid:.*[[:blank:]]1$' "/proc/$pid/status" 2>/dev/null; then
            first=$pid
        fi
    done
done
if [ -z "$first" ]; then
    echo "$0: no cluster runs with $cache: start one with \`make e2e-cluster\`" >&2
    exit 1
fi
if [ $# -eq 0 ]; then
    set -- bash
fi
cgroup_enter "$group"
# shellcheck disable=SC2016 # the inner shell's
exec nsenter --target "$first" --mount --pid --net --uts --ipc --cgroup --root --wd \
    env -i HOME=/root TERM="${TERM-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    KUBECONFIG=/etc/kubernetes/admin.conf sh -c 'cd "$0" && exec "$@"' "$workspace" "$@"
