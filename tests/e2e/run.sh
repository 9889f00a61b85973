#!/bin/sh
# Starts a Kubernetes cluster of one node in namespaces of its own, runs a command on the node, and stops the cluster
# (`make e2e`; docs/e2e.md):
#
#   sh tests/e2e/run.sh CACHE RELEASE BIN PROGRAMS [COMMAND [ARGUMENT…]]
#
# The node's root file system is the Debian RELEASE with containerd. BIN is the directory of the programs that are not in
# Debian, PROGRAMS that of the static programs of `make build`, for the images. What is built is kept in CACHE; what is
# written on the node is not.
#
# COMMAND runs in the directory of the repository, with KUBECONFIG set; its exit status is the one of this script.
# Without COMMAND, the cluster runs until this script gets a signal.
#
# With DELEGATE=runc or DELEGATE=crun in the environment, that is runcrust's delegate on the node.
set -eu

if [ $# -lt 4 ]; then
    echo "usage: sh $0 CACHE RELEASE BIN PROGRAMS [COMMAND [ARGUMENT…]]" >&2
    exit 64
fi
cache=$1 release=$2 bin=$3
here=$(dirname "$0")
# shellcheck source=tests/contained.sh
. "$here/../contained.sh"
# shellcheck source=tests/e2e/cgroup.sh
. "$here/cgroup.sh"

sh "$here/programs.sh" "$bin"
case $release in
trixie | sid) ;;
*)
    echo "$0: RELEASE=$release has no etcd or kubectl that is new enough: use trixie or sid" >&2
    exit 64
    ;;
esac

mkdir -p "$cache"
# One cluster at a time. Only this script has the lock open, so no other process keeps it locked afterwards.
exec 9>"$cache/lock"
if ! flock --nonblock 9; then
    echo "$0: waiting for another run, which uses $cache" >&2
    flock 9
fi
group=$(cgroup_name "$cache")
stop() {
    end_contained
    cgroup_remove "$group"
}
trap stop EXIT
trap 'exit 1' HUP INT TERM
# What killed runs left behind.
cgroup_remove "$group"
rm -rf --one-file-system "$cache"/new.* "$cache"/images/*.new "$cache"/images/*.tar.* "$cache/log"
contained sh "$here/inside.sh" "$@" 9>&-
