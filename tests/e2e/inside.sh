#!/bin/sh
# The part of run.sh that runs in mount and pid namespaces of its own, with the same arguments. Builds the node's root
# file system and images if they do not exist, and becomes the node.
set -eu

cache=$1 release=$2 bin=$3 programs=$4
shift 4
here=$(dirname "$0")
workspace=$(cd "$here/../.." && pwd)
# shellcheck source=tests/e2e/cgroup.sh
. "$here/cgroup.sh"
# shellcheck source=tests/e2e/images.sh
. "$here/images.sh"

base=$(sh "$workspace/vm-image/base.sh" "$cache" "$release" "$here/packages")
make_images "$cache/images" "$bin" "$programs" "$base/root"

# Writes go to a tmpfs, which is removed with the mount namespace.
run=$cache/run
mkdir -p "$run"
mount -t tmpfs -o mode=755 run "$run"
root=$run/root
mkdir "$root" "$run/upper" "$run/work" "$run/lib"
mount -t overlay -o "lowerdir=$base/root,upperdir=$run/upper,workdir=$run/work" e2e "$root"
cp -R "$here/node/." "$root"
version=$(dpkg-query --root "$base/root" --showformat '${Version}' --show containerd)
cp "$here/containerd-${version%%.*}.toml" "$root/etc/containerd/config.toml"
if [ -n "${DELEGATE-}" ]; then
    mkdir -p "$root/etc/runcrust"
    for directory in /usr/sbin /usr/bin; do
        if [ -e "$root$directory/$DELEGATE" ]; then
            echo "delegate = \"$directory/$DELEGATE\"" >"$root/etc/runcrust/config.toml"
        fi
    done
fi

# containerd's snapshots cannot be on an overlay, and a loop device does not tell which tmpfs below an overlay its file is
# on.
mount --bind "$run/lib" "$root/var/lib"
mkdir -p "$root/opt/kubernetes" "$root/opt/images" "$root/var/log/services" "$cache/log"
mount --bind -o ro "$bin" "$root/opt/kubernetes"
mount --bind -o ro "$cache/images" "$root/opt/images"
# The services' output stays after the run.
mount --bind "$cache/log" "$root/var/log/services"

made=$(date --reference="$base/root/var/lib/dpkg/status" +%F)
echo "a node with Debian $release, installed on $made:"
# shellcheck disable=SC2016 # the variables are dpkg-query's
dpkg-query --root "$base/root" --showformat '  ${Package} ${Version}\n' --show containerd crun etcd-server runc
"$bin/kubelet" --version | sed 's/^/  kubelet of /'

cgroup_enter "$(cgroup_name "$cache")"
exec unshare --net --uts --ipc --cgroup sh "$workspace/tests/enter-root.sh" "$root" "$workspace" \
    env -i HOME=/root TERM="${TERM-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    sh tests/e2e/node.sh "$cache" "$@"
