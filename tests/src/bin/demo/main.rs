//! `make demo`: a deferred volume from end to end, without Kubernetes, with runc and with crun, through the runtime's
//! command line and through a private containerd's CRI. All programs are real. Everything is removed at the end, also
//! if the demo is interrupted.

mod bundles;
mod cri;
mod transcript;

use runcrust_tests::Delegate;

fn main() {
    for delegate in [Delegate::Runc, Delegate::Crun] {
        bundles::show(delegate);
        cri::show(delegate);
    }
    println!("\nDone. The demo has removed everything that it created.");
}
