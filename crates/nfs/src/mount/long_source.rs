//! Mounts a share whose source is longer than the 255 bytes that fsconfig(2) accepts. mount(2) takes longer ones, but
//! it attaches the mount at once. So that happens in a mount namespace that nothing else is in.

use std::os::fd::OwnedFd;

use crust_blockfs::options::FsOption;
use crust_blockfs::sys::unshare_mount_namespace;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, OpenTreeFlags, mount as mount2, mount_change, open_tree,
};

/// A directory that every node has. It is only covered in the thread's own mount namespace.
const MOUNT_POINT: &str = "/proc";

/// Returns a mount that isn't attached anywhere. Blocks until the server has answered.
pub(super) fn mount(
    source: &str,
    fstype: &str,
    kernel_options: &[FsOption],
    read_only: bool,
) -> Result<OwnedFd, Errno> {
    let data = data(kernel_options);
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, read_only);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            unshare_mount_namespace()?;
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private)?;
            let data = std::ffi::CString::new(data).map_err(|_| Errno::INVAL)?;
            mount2(source, MOUNT_POINT, fstype, flags, &*data)?;
            let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            open_tree(CWD, MOUNT_POINT, clone)
        });
        let thread = thread.map_err(|error| crust_blockfs::errno::from_io_error(&error))?;
        thread.join().unwrap_or(Err(Errno::IO))
    })
}

/// Returns the options as mount(2) takes them. A value with a comma, which only a label has, is quoted.
fn data(options: &[FsOption]) -> String {
    let text = |option: &FsOption| match option.value() {
        Some(value) if value.contains(',') => format!("{}=\"{value}\"", option.key()),
        _ => option.to_string(),
    };
    options.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_quoted() {
        let options = ["vers=4.2", "nolock", "context=u:r:t:s0:c1,c2"].map(FsOption::parse);
        assert_eq!(data(&options), "vers=4.2,nolock,context=\"u:r:t:s0:c1,c2\"");
    }
}
