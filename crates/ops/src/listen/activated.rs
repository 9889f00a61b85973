//! The sockets that systemd listens on for us (`sd_listen_fds(3)`).

use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;

use listenfd::ListenFd;
use tokio::net::UnixListener;

use super::{ListenError, failed, from_std, unix};

/// The names that sockets of ours have: their unit gives them (`FileDescriptorName=`), or is called
/// so, `crust_ops.socket`.
const KNOWN: [&str; 2] = ["crust_ops", "crust"];

/// Those that nobody took yet.
pub(crate) struct Activated(Vec<Given>);

/// One socket.
struct Given {
    /// Empty where systemd, or who plays it, gave none.
    name: String,
    listener: io::Result<StdUnixListener>,
}

impl Activated {
    /// Takes them. To be called once, at first.
    #[expect(
        clippy::disallowed_methods,
        reason = "socket activation is by the environment (sd_listen_fds(3)), for this pid alone"
    )]
    pub(crate) fn take() -> Self {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut fds = ListenFd::from_env();
        let given = (0..fds.len()).map(|at| {
            let name = names.next().unwrap_or_default();
            let name = name.strip_suffix(".socket").unwrap_or(name).to_owned();
            let listener = fds.take_unix_listener(at);
            let listener = listener.and_then(|it| it.ok_or(io::ErrorKind::NotFound.into()));
            Given { name, listener }
        });
        Self(given.collect())
    }

    /// The one of this name, or without one of ours but bound to `path`; or else one made there.
    pub(crate) fn or_unix(&mut self, name: &str, path: &Path) -> Result<UnixListener, ListenError> {
        let named = self.0.iter().position(|given| given.name == name);
        let bound = || self.0.iter().position(|given| given.is_nameless_at(path));
        let Some(at) = named.or_else(bound) else {
            return unix(path).map_err(|error| self.blamed(error));
        };
        let listener = self.0.remove(at).listener;
        let place = format!("on systemd's {name}");
        listener
            .and_then(from_std)
            .map_err(failed("listen", &place))
    }

    /// Those that nobody took, each as a sentence.
    pub(crate) fn left(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(Given::unknown)
    }

    /// Where systemd listens for us by a name that we don't know, it is nobody else who does.
    fn blamed(&self, mut error: ListenError) -> ListenError {
        if let ListenError::Call { source, hint, .. } = &mut error
            && source.kind() == io::ErrorKind::AddrInUse
            && let Some(given) = self.0.iter().find(|it| !KNOWN.contains(&&*it.name))
        {
            *hint = format!("; hint: {}", given.unknown());
        }
        error
    }
}

impl Given {
    fn is_nameless_at(&self, path: &Path) -> bool {
        let address = self.listener.as_ref().ok().map(StdUnixListener::local_addr);
        let address = address.and_then(Result::ok);
        let bound = address.as_ref().and_then(|address| address.as_pathname());
        let is_same = |bound: &Path| {
            // One of them may go through a link.
            let real = |path: &Path| path.canonicalize().ok();
            bound == path || real(bound).is_some_and(|bound| Some(bound) == real(path))
        };
        !KNOWN.contains(&&*self.name) && bound.is_some_and(is_same)
    }

    fn unknown(&self) -> String {
        let name = match &*self.name {
            "" => "without a name".to_owned(),
            name => format!("by the name {name:?}"),
        };
        let place = match &self.listener {
            Ok(listener) => match listener.local_addr() {
                Ok(address) => match address.as_pathname() {
                    Some(path) => path.display().to_string(),
                    None => "no path".to_owned(),
                },
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        if KNOWN.contains(&&*self.name) {
            return format!(
                "systemd passes a socket {name} ({place}), which isn't served: there are two of them, \
                 or `crust_listen` is empty"
            );
        }
        format!(
            "systemd passes a socket {name} ({place}), which is none of ours: known are the names {} \
             (FileDescriptorName= in its unit), and `listen` and `crust_listen` of the configuration",
            KNOWN.join(" and ")
        )
    }
}
