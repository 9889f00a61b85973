#!/bin/sh
# Fails if the directory BIN lacks programs of the cluster that are in no Debian package, and says how to get them:
#
#   sh tests/e2e/programs.sh BIN
set -eu

bin=$1
# shellcheck source=tests/e2e/images.sh
. "$(dirname "$0")/images.sh"

missing=
for program in kube-apiserver kube-controller-manager kube-scheduler kubelet $(sidecars); do
    if [ -z "$bin" ] || [ ! -x "$bin/$program" ]; then
        missing="$missing $program"
    fi
done
if [ -z "$missing" ]; then
    exit
fi
cat >&2 <<END
$0: ${bin:-E2E_BIN, which is not set,} lacks:$missing
The cluster needs static programs that are in no Debian package: make e2e E2E_BIN=<directory>
  kube…   from kubernetes-server-linux-$(dpkg --print-architecture).tar.gz of https://dl.k8s.io/<version>/
  others  from their images, or from external-provisioner, external-resizer, node-driver-registrar and livenessprobe of
          https://github.com/kubernetes-csi: CGO_ENABLED=0 go build ./cmd/<program>
END
exit 1
