//! What isn't runcrust's business reaches the delegate as if runcrust weren't there: the same
//! process, arguments, environment and descriptors, for the price of one exec.

mod answers;
mod calls;
mod probe;
mod strace;
mod traces;
