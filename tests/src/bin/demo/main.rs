//! `make demo`: a deferred volume end to end, without Kubernetes, on runc and on crun, by the runtime's command line
//! and through a private containerd's CRI. Everything is real and everything is removed again, also when the demo is
//! interrupted.

mod bundles;
mod cri;
mod transcript;

use runcrust_tests::Delegate;

fn main() {
    for delegate in [Delegate::Runc, Delegate::Crun] {
        bundles::show(delegate);
        cri::show(delegate);
    }
    println!("\nDone: nothing is left of any of it.");
}
