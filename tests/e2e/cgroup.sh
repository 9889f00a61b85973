# Functions for the control groups of the node of `make e2e`, on hosts with cgroup v1 and v2. The scripts that run on the
# host and on the node source this file.

# Prints the mount point of each hierarchy. With v1 and v2 side by side only those of v1 count, because kubelet then uses
# v1.
cgroup_hierarchies() {
    if [ "$(stat --file-system --format %T /sys/fs/cgroup)" = cgroup2fs ]; then
        echo /sys/fs/cgroup
        return
    fi
    for hierarchy in /sys/fs/cgroup/*; do
        if [ ! -L "$hierarchy" ] && [ "$(stat --file-system --format %T "$hierarchy")" = cgroupfs ]; then
            echo "$hierarchy"
        fi
    done
}

# Prints the name of the node's group. It depends on the directory $1 only, so that a run finds what a killed one left.
cgroup_name() {
    echo "runcrust-e2e-$(cd "$1" && pwd -P | sha256sum | cut -c 1-8)"
}

# Moves this shell into the group $1, in all hierarchies, and creates it if it does not exist.
cgroup_enter() {
    for hierarchy in $(cgroup_hierarchies); do
        if [ ! -d "$hierarchy/$1" ]; then
            cgroup_create "$hierarchy" "$1"
        fi
        group=$hierarchy/$1
        # With v2 the node's processes are not in its root group.
        if [ -d "$group/init" ]; then
            group=$group/init
        fi
        echo 0 >"$group/cgroup.procs"
    done
}

# Creates the group $2 in the hierarchy $1.
cgroup_create() {
    if [ -e "$1/cgroup.controllers" ]; then
        cgroup_delegate "$1"
    fi
    mkdir "$1/$2"
    # With v1 a new group has no processors and no memory nodes, and processes cannot enter it.
    for file in cpuset.cpus cpuset.mems; do
        if [ ! -e "$1/cgroup.controllers" ] && [ -e "$1/$file" ]; then
            cat "$1/$file" >"$1/$2/$file"
        fi
    done
}

# Enables all controllers of the group $1 for its subgroups (v2).
cgroup_delegate() {
    # shellcheck disable=SC2013 # the file is a line of words
    for controller in $(cat "$1/cgroup.controllers"); do
        # kubelet complains about a missing controller that it needs.
        echo "+$controller" >"$1/cgroup.subtree_control" 2>/dev/null || true
    done
}

# Removes the group $1 with its subgroups. Their processes must have been killed, and may still be ending.
cgroup_remove() {
    for hierarchy in $(cgroup_hierarchies); do
        for _ in $(seq 50); do
            if [ ! -d "$hierarchy/$1" ]; then
                break
            fi
            find "$hierarchy/$1" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.2
        done
        if [ -d "$hierarchy/$1" ]; then
            echo "$0: cannot remove the control group $hierarchy/$1: kill its processes, and remove it with rmdir" >&2
        fi
    done
}

# Mounts the hierarchies on a node that is in a control group namespace of its own.
cgroup_mount() {
    if [ "$(stat --file-system --format %T /sys/fs/cgroup)" = cgroup2fs ]; then
        set --
    else
        # shellcheck disable=SC2046 # a word for each
        set -- $(cgroup_hierarchies | sed 's,.*/,,')
    fi
    umount --recursive --lazy /sys
    mount -t sysfs sysfs /sys
    if [ $# -eq 0 ]; then
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        # Groups with controllers for subgroups have no processes of their own.
        mkdir /sys/fs/cgroup/init
        while read -r pid; do
            echo "$pid" >/sys/fs/cgroup/init/cgroup.procs 2>/dev/null || true
        done </sys/fs/cgroup/cgroup.procs
        cgroup_delegate /sys/fs/cgroup
        return
    fi
    mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
    # The name of a mount point is a list of controllers, or the name of a hierarchy without any.
    for name; do
        options=$name
        if ! grep -q "^${name%%,*}[[:blank:]]" /proc/cgroups; then
            options=none,name=$name
        fi
        mkdir "/sys/fs/cgroup/$name"
        mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$name"
        # Programs look for each controller by its name.
        for controller in $(echo "$name" | tr , ' '); do
            if [ ! -e "/sys/fs/cgroup/$controller" ]; then
                ln -s "$name" "/sys/fs/cgroup/$controller"
            fi
        done
    done
}
