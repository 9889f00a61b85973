#!/bin/sh
# Makes a cluster of this node, and runs a command on it:
#
#   sh tests/e2e/node.sh CACHE [COMMAND [ARGUMENT…]]
#
# It runs on the node, started by inside.sh. When it ends, all other processes of the node are killed. CACHE is the
# directory of run.sh, for messages.
set -eu

# On another root file system this would be the host.
if ! awk '$5 == "/"' /proc/self/mountinfo | grep -q ' - overlay e2e '; then
    echo "$0: this script kills all processes of its node: only tests/e2e/inside.sh starts it; use make e2e" >&2
    exit 64
fi

cache=$1
shift
here=$(dirname "$0")
# shellcheck source=tests/e2e/cgroup.sh
. "$here/cgroup.sh"

stop() {
    status=$?
    trap '' HUP INT TERM
    if [ "$status" -ne 0 ] && [ -z "${ready-}" ]; then
        echo "$0: the cluster does not start; its services write to $cache/log:" >&2
        tail --quiet --lines 3 /var/log/services/*.log >&2
    fi
    # This is every process in the pid namespace, except for this shell and the first one.
    kill -s KILL -- -1 2>/dev/null || true
    # A loop device belongs to no namespace. A device that is still mounted is detached when its mount ends with the node.
    own=$(stat --format '%Hd:%Ld' /var/lib)
    losetup --list --noheadings --output NAME,BACK-MAJ:MIN | while read -r device on; do
        if [ "$on" = "$own" ]; then
            losetup --detach "$device"
        fi
    done
    exit "$status"
}
trap stop EXIT
trap 'exit 1' HUP INT TERM

# Waits until a command succeeds, for $1 seconds.
wait_for() {
    deadline=$(($(date +%s) + $1))
    shift
    until output=$("$@" 2>&1); do
        if [ "$(date +%s)" -ge "$deadline" ]; then
            echo "$0: $* failed: $output" >&2
            return 1
        fi
        sleep 0.2
    done
}

# crun changes the owner of /dev/null, for containers in user namespaces, so the node has one of its own.
mount -t tmpfs -o mode=755 null /mnt
mknod -m 666 /mnt/null c 1 3
mount --bind /mnt/null /dev/null
umount --lazy /mnt
cgroup_mount
# As with systemd: mounts of the CSI drivers propagate between the node and their containers.
mount --make-rshared /

# The address of the node is one of a bridge without ports, because that needs no more from the kernel than the bridge of
# the pods. 10.96.0.1 is the service `kubernetes`.
hostname node1
ip link set lo up
ip link add node0 type bridge
ip link set node0 up
ip address add 10.99.0.1/24 dev node0
ip address add 10.96.0.1/32 dev lo
printf '127.0.0.1 localhost\n10.99.0.1 node1\n' >/etc/hosts
: >/etc/resolv.conf

# The certificates and the kubeconfigs of the cluster are those that kubeadm would make.
pki=/etc/kubernetes/pki
mkdir "$pki"
printf '[req]\ndistinguished_name = dn\n[dn]\n' >"$pki/openssl.cnf"
# Makes the certificate and key $1 with the subject $2, and with the extensions that follow.
certificate() {
    name=$1 subject=$2
    shift 2
    openssl req -config "$pki/openssl.cnf" -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 \
        -keyout "$pki/$name.key" -out "$pki/$name.crt" -subj "$subject" "$@" 2>/dev/null
}
issued() {
    certificate "$@" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -addext basicConstraints=critical,CA:FALSE
}
# Makes the kubeconfig $1 for the subject $2.
kubeconfig() {
    issued "$1" "$2"
    cat >"/etc/kubernetes/$1.conf" <<END
apiVersion: v1
kind: Config
clusters:
  - name: e2e
    cluster:
      server: https://10.99.0.1
      certificate-authority: $pki/ca.crt
users:
  - name: $1
    user:
      client-certificate: $pki/$1.crt
      client-key: $pki/$1.key
contexts:
  - name: e2e
    context:
      cluster: e2e
      user: $1
current-context: e2e
END
}
certificate ca /CN=e2e -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
issued apiserver /CN=kube-apiserver \
    -addext subjectAltName=IP:10.99.0.1,IP:10.96.0.1,IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default.svc
issued apiserver-kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
issued kubelet-server /CN=node1 -addext subjectAltName=IP:10.99.0.1,DNS:node1
kubeconfig admin /O=system:masters/CN=admin
kubeconfig controller-manager /CN=system:kube-controller-manager
kubeconfig scheduler /CN=system:kube-scheduler
kubeconfig kubelet /O=system:nodes/CN=system:node:node1
openssl ecparam -name prime256v1 -genkey -noout -out "$pki/sa.key"
openssl ec -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2>/dev/null
export KUBECONFIG=/etc/kubernetes/admin.conf

setsid sh "$here/services.sh" </dev/null >/var/log/services/services.log 2>&1 &
wait_for 10 test -p /run/services/requests
systemctl start etcd kube-apiserver containerd registry
for archive in /opt/images/*.tar; do
    ctr --namespace k8s.io images import "$archive" >/dev/null
done
wait_for 120 kubectl get --raw /readyz
systemctl start kube-controller-manager kube-scheduler kubelet
wait_for 120 kubectl wait --for=condition=Ready --timeout=5s node/node1
# Without it no pod can be created.
wait_for 60 kubectl get serviceaccount default
ready=1

if [ $# -eq 0 ]; then
    cat <<END
The cluster runs until Ctrl-C. In another terminal:
    make e2e-shell          # a shell on the node, with kubectl
    sh tests/e2e/enter.sh $cache kubectl get pods --all-namespaces
Its services write to $cache/log.
END
    set -- sleep infinity
fi
"$@" &
wait $!
