//! What isn't runcrust's business reaches the delegate as if runcrust weren't there: the same
//! process, arguments, environment and descriptors, for the price of one exec.

mod answers;
mod budgets;
mod caller;
mod calls;
mod elsewhere;
mod errors;
mod hooks;
mod inherited;
mod kinds;
mod lives;
mod many;
mod names;
mod pods;
mod probe;
mod probed;
mod rootless;
mod runs;
mod sockets;
mod strace;
mod traces;
mod twin;
mod twins;
