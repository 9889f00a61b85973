# The images of the node of `make e2e`. Scripts in this directory source this file.
#
# The manifests are applied as they are, so the images have the names that are in them.

repository=$(dirname "$0")/../..

# Prints the names of the images of the manifests that begin with $1.
manifest_images() {
    grep --recursive --no-filename --only-matching "$1[a-z-]*:v*[0-9.]*" "$repository/deploy/kubernetes" | sort -u
}

# Prints the names of the sidecars' programs. The image of each contains a program of the same name.
sidecars() {
    manifest_images registry.k8s.io/sig-storage/ | sed 's,.*/,,; s,:.*,,' | sort -u
}

# Writes the archives of all images to the directory $1. The programs of the sidecars are in $2, those of runcrust in $3,
# and those of the other images in the node's root file system $4.
make_images() {
    mkdir -p "$1"
    for image in $(manifest_images registry.k8s.io/sig-storage/); do
        program=${image##*/}
        program=${program%:*}
        mkdir "$1/root.new"
        cp "$2/$program" "$1/root.new"
        make_image "$1/$program.tar" "$image" "{\"Entrypoint\":[\"/$program\"]}" "$1/root.new"
    done

    # The sandboxes' process has to reap the processes of pods that share their pid namespace.
    mkdir "$1/root.new"
    cp "$4/usr/bin/catatonit" "$1/root.new/pause"
    make_image "$1/pause.tar" registry.k8s.io/pause:3.10.1 '{"User":"65535:65535","Entrypoint":["/pause","-P"]}' \
        "$1/root.new"

    mkdir "$1/root.new"
    (cd "$1/root.new" && mkdir bin etc root tmp && chmod 1777 tmp)
    cp "$4/usr/bin/busybox" "$1/root.new/bin"
    for applet in $(chroot "$4" busybox --list); do
        ln -s busybox "$1/root.new/bin/$applet" 2>/dev/null || true
    done
    echo root:x:0:0:root:/root:/bin/sh >"$1/root.new/etc/passwd"
    echo root:x:0: >"$1/root.new/etc/group"
    make_image "$1/busybox.tar" docker.io/library/busybox:latest \
        '{"Cmd":["sh"],"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}' "$1/root.new"

    for image in $(manifest_images localhost/); do
        program=${image##*/}
        make_own_image "${program%:*}" "$3" "${image##*:}" "$1/${program%:*}.tar"
    done
}

# Writes the image with the name $2, the JSON $3 as its configuration, and the files of the directory $4 to the archive
# $1, in the format of `docker save`. Removes the directory.
make_image() {
    tar --create --file "$1.layer.new" --directory "$4" --owner 0 --group 0 --numeric-owner --sort name --mtime @0 .
    rm -r "$4"
    mkdir "$4"
    mv "$1.layer.new" "$4/layer.tar"
    printf '{"architecture":"%s","os":"linux","config":%s,"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$(dpkg --print-architecture)" "$3" "$(sha256sum <"$4/layer.tar" | cut -d ' ' -f 1)" >"$4/config.json"
    printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$2" >"$4/manifest.json"
    tar --create --file "$1" --directory "$4" manifest.json config.json layer.tar
    rm -r "$4"
}

# Builds the image $1 from runcrust's programs in $2 with the version $3 to the archive $4, unless that was built from the
# same files.
make_own_image() {
    key=$(cat "$2/runcrust" "$2/crust-mount-hook" "$2/crust_ops" "$2/crust-csi" "$repository/deploy/image/build.sh" \
        "$repository/deploy/image/$1"/* | sha256sum)
    if [ ! -e "$4" ] || [ "$(cat "${4%.tar}.key" 2>/dev/null)" != "$key" ]; then
        rm -f "${4%.tar}.key"
        sh "$repository/deploy/image/build.sh" "$1" "$2" "$3" "$4"
        echo "$key" >"${4%.tar}.key"
    fi
}
