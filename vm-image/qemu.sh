#!/bin/sh
# Starts QEMU with a node, in the place of this process:
#
#   exec sh vm-image/qemu.sh QEMU NODE PAYLOAD SCRATCH PARAMETERS [ARGUMENT…]
#
# QEMU is the directory with QEMU's packages that base.sh printed, NODE the directory that node.sh printed, and PAYLOAD
# the image that payload.sh built. What the guest writes is in the directory SCRATCH: two disks for volumes, and the
# changes of its root file system. PARAMETERS are added to the kernel's command line, ARGUMENTs to QEMU's.
#
# VM_ACCEL=kvm uses the processor's virtualisation. It is not detected, because opening /dev/kvm hangs on some machines.
set -eu

programs=$1/root/usr node=$2 payload=$3 scratch=$4 parameters=$5
shift 5
libraries=$(echo "$programs"/lib/*-linux-gnu)

# Prints the options of a drive for the file $1. In a value of QEMU's options a comma is written as two.
disk() {
    echo "if=virtio,format=raw,cache=unsafe,file=$(echo "$1" | sed 's/,/,,/g')"
}

truncate --size 512M "$scratch/one" "$scratch/two"
# norandmaps: at the same addresses, QEMU can use its translation of a program again when the program is run again.
append="root=/dev/vda rw console=ttyS0 quiet loglevel=2 panic=-1 norandmaps mitigations=off"
append="$append fsck.mode=skip systemd.show_status=false $parameters"
# The packages are not installed, so the loader is called by its path, with the directory of the libraries.
TMPDIR=$scratch exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" \
    "$programs/bin/qemu-system-x86_64" -L "$programs/share/seabios" -L "$programs/share/qemu" \
    -accel "${VM_ACCEL:-tcg}" -cpu max -smp 2 -m 3072 \
    -nodefaults -no-reboot -display none -nic none "$@" \
    -kernel "$node/vmlinuz" -initrd "$node/initrd.img" -append "$append" \
    -drive "$(disk "$node/root.img"),snapshot=on" \
    -drive "$(disk "$payload"),readonly=on" \
    -drive "$(disk "$scratch/one")" -drive "$(disk "$scratch/two")"
