#!/bin/sh
# Becomes the QEMU of a node:
#
#   exec sh vm-image/qemu.sh PROGRAMS NODE PAYLOAD SCRATCH WORDS [ARGUMENT…]
#
# PROGRAMS is the directory with QEMU's packages that base.sh printed, NODE is what node.sh printed, PAYLOAD is payload.sh's image, and what the guest writes is kept in the
# directory SCRATCH: two disks for volumes, and all that changes on its root file system. WORDS are added
# to the kernel's command line, ARGUMENTs to QEMU's. VM_ACCEL=kvm uses the processor's virtualisation (by
# default it isn't even looked for: there are machines where opening /dev/kvm hangs).
set -eu

programs=$1/root/usr node=$2 payload=$3 scratch=$4 words=$5
shift 5
libraries=$(echo "$programs"/lib/*-linux-gnu)

# A comma ends a value, and two are one.
disk() {
    echo "if=virtio,format=raw,cache=unsafe,file=$(echo "$1" | sed 's/,/,,/g')"
}

truncate --size 512M "$scratch/one" "$scratch/two"
# norandmaps: what QEMU has translated of a program serves its next run too.
append="root=/dev/vda rw console=ttyS0 quiet loglevel=2 panic=-1 norandmaps mitigations=off"
append="$append fsck.mode=skip systemd.show_status=false $words"
# The packages are unpacked and not installed: their own loader finds their libraries.
TMPDIR=$scratch exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" \
    "$programs/bin/qemu-system-x86_64" -L "$programs/share/seabios" -L "$programs/share/qemu" \
    -accel "${VM_ACCEL:-tcg}" -cpu max -smp 2 -m 3072 \
    -nodefaults -no-reboot -display none -nic none "$@" \
    -kernel "$node/vmlinuz" -initrd "$node/initrd.img" -append "$append" \
    -drive "$(disk "$node/root.img"),snapshot=on" \
    -drive "$(disk "$payload"),readonly=on" \
    -drive "$(disk "$scratch/one")" -drive "$(disk "$scratch/two")"
