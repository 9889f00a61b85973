//! Comparing the node's delegate with the kind that it would be treated as.

use anyhow::{Result, bail};
use crust_engines::{NodeDelegate, NodeRoot};

use crate::delegate::identity::Identity;
use crate::delegate::version::{Said, ask_below};

/// Asks the delegate what it is. Fails where that is another kind than the one in force: containers would be created
/// by a wrong reading of their command lines. Returns a note where it can't be asked, or answers nothing that is known.
pub(super) fn check(node: &NodeRoot, delegate: &NodeDelegate) -> Result<Option<String>> {
    let (path, kind) = (delegate.path.display(), delegate.kind.name());
    let treated = |why: &str| Ok(Some(format!("{path} is treated as {kind}{why}")));
    // A program that others can change isn't run as root.
    if let Err(error) = node.check_program(&delegate.path) {
        return treated(&format!(", and wasn't run to check that: {error}"));
    }
    let there = if node.is_here() { "" } else { " on the node" };
    let identity = Identity {
        path: &delegate.path,
        kind: delegate.kind,
        configured: &delegate.configured,
        file: format!("{}{there}", delegate.file.display()),
    };
    let said = ask_below(node.path(), &delegate.path);
    if let Some(mismatch) = identity.mismatch(&said) {
        bail!("{}; hint: {}", mismatch.found, mismatch.hint);
    }
    match said {
        Said::Version(name, _) if name == kind => Ok(None),
        Said::Version(name, version) => treated(&format!(
            ", and says that it is {name} {version}, which wasn't tried"
        )),
        Said::Nothing(why) | Said::NotRun(why) => treated(&format!(
            ", which can't be checked from here: --version: {why}; hint: call `runcrust crust doctor` \
             on the node"
        )),
    }
}
