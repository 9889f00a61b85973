//! The description of a daemon.

/// The names and texts in which one daemon differs from another. Texts are parts of sentences.
#[derive(Debug, Clone, Copy)]
pub struct Daemon {
    /// The name for its users: `crust_ops`.
    pub name: &'static str,
    /// The prefix of its own method_prefix: `crust.`. Others are gRPC's.
    pub method_prefix: &'static str,
    /// Those of them that are called over and over, and change nothing: `List`. They are logged as the others are
    /// only where they fail for another reason than the state of what they ask about (`FAILED_PRECONDITION`).
    pub quiet_methods: &'static [&'static str],
    /// Methods of its own whose answers are streaming_methods: `Events`. A connection is not closed for another one while such a
    /// stream is open on it.
    pub streaming_methods: &'static [&'static str],
    /// Its files, as a serialised `google.protobuf.FileDescriptorSet`.
    pub descriptors: &'static [u8],
    /// The next step where too many calls are under way: "try again later, or raise `max_calls`".
    pub busy_hint: &'static str,
    /// The sockets that systemd may pass to it.
    pub sockets: KnownSockets,
}

/// The sockets that systemd may listen on for a daemon.
#[derive(Debug, Clone, Copy)]
pub struct KnownSockets {
    /// Their names: their unit gives them (`FileDescriptorName=`), or is called so,
    /// `crust_ops.socket`.
    pub names: &'static [&'static str],
    /// The other place that names them, by their setting: "`listen` of the configuration".
    pub setting: &'static str,
    /// How one by such a name can be left over: "there are two of them".
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
        busy_hint: "try again later, or raise --max-calls",
        sockets: KnownSockets {
            names: &["a_daemon"],
            setting: "`--listen`",
            unserved_reason: "there are two of them",
        },
    };
}
