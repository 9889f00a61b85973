//! Calls without volumes reach the delegate as if runcrust were not there: the same process, arguments, environment and
//! descriptors, at the cost of one exec.

mod bind_sources;
mod budgets;
mod caller;
mod compared_container;
mod container_pair;
mod errors;
mod hooks;
mod inherited;
mod kinds;
mod lives;
mod many_mounts;
mod names;
mod pass_through;
mod pods;
mod probe;
mod probed_node;
mod rootless;
mod runs;
mod same_answers;
mod same_calls;
mod sockets;
mod traced_calls;
