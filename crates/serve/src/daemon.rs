//! The names and texts that differ between the daemons.

/// The names and texts that differ between the daemons. Messages contain the texts as parts of sentences.
#[derive(Debug, Clone, Copy)]
pub struct Daemon {
    /// The name in messages: `crust_ops`.
    pub name: &'static str,
    /// The prefix of the daemon's own methods: `crust.`. All other methods are gRPC's: health and reflection.
    pub method_prefix: &'static str,
    /// Methods that are polled and change nothing: `List`. A call that succeeds or fails with `FAILED_PRECONDITION` is
    /// logged at debug level.
    pub quiet_methods: &'static [&'static str],
    /// Own methods with a streamed response: `Events`. A connection with such an open stream is in use, and isn't
    /// closed to make room for another one.
    pub streaming_methods: &'static [&'static str],
    /// The .proto files as a serialised `google.protobuf.FileDescriptorSet`, for reflection.
    pub descriptors: &'static [u8],
    /// The hint if too many calls are in progress, such as "retry later, or raise `max_calls`".
    pub busy_hint: &'static str,
    /// The sockets that systemd can pass to the daemon.
    pub sockets: KnownSockets,
}

/// The sockets of a daemon that systemd can listen on (socket activation).
#[derive(Debug, Clone, Copy)]
pub struct KnownSockets {
    /// The names of the sockets: `FileDescriptorName=` in the socket unit, by default the unit's name, which can end
    /// with `.socket`.
    pub names: &'static [&'static str],
    /// The setting that has the paths of the sockets, such as "`listen` of the configuration".
    pub setting: &'static str,
    /// The phrase that says in an error why a socket with one of the names isn't served, such as "there are two of
    /// them".
    pub unserved_reason: &'static str,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) static DAEMON: Daemon = Daemon {
        name: "a_daemon",
        method_prefix: "ours.",
        quiet_methods: &[],
        streaming_methods: &["Watch"],
        descriptors: tonic_health::pb::FILE_DESCRIPTOR_SET,
        busy_hint: "retry later, or raise --max-calls",
        sockets: KnownSockets {
            names: &["a_daemon"],
            setting: "`--listen`",
            unserved_reason: "there are two of them",
        },
    };
}
