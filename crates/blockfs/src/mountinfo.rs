//! Reads mount tables: `/proc/<pid>/mountinfo` (`proc_pid_mountinfo(5)`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::bounded;

use crate::device::DeviceNumber;

/// A mount of a mount namespace. Names are unescaped, and not necessarily UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount's id, which is statx's `stx_mnt_id`. The kernel reuses it once the mount is gone.
    pub id: u32,
    /// The id of the mount that this mount is mounted on. The root of the namespace has its own id here. The parent
    /// isn't listed if it is outside the process's root directory.
    pub parent: u32,
    /// The superblock's device number. It is not always `st_dev`, which differs between the subvolumes of a btrfs.
    pub device: DeviceNumber,
    /// The path of the mounted directory or file from the root of the file system. It ends in `//deleted` if the
    /// directory or file has been removed.
    pub root: PathBuf,
    /// The mount point, relative to the process's root directory.
    pub mount_point: PathBuf,
    /// The mount's own options, separated by commas, such as `rw,nosuid,relatime`.
    pub options: OsString,
    /// The peer groups that the mount belongs to, or is a slave of.
    pub propagation: Propagation,
    /// The file system type, with the subtype after a dot (`fuse.sshfs`).
    pub fstype: OsString,
    /// The source that was passed to mount(2); empty if there was none.
    pub source: OsString,
    /// The options of the superblock, as the kernel shows them.
    pub super_options: SuperOptions,
}

/// The options of a superblock, separated by commas, with the kernel's escapes in names and values. Two lists are equal
/// if their unescaped options are.
#[derive(Debug, Clone)]
pub struct SuperOptions(OsString);

impl PartialEq for SuperOptions {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for SuperOptions {}

impl SuperOptions {
    /// Returns the options, unescaped. The kernel writes a comma within a value as `\054` (`seq_show_option` of
    /// `linux/seq_file.h`), so the list is split before its parts are unescaped.
    pub fn iter(&self) -> impl Iterator<Item = OsString> + '_ {
        let options = self.0.as_bytes().split(|byte| *byte == b',');
        options.map(unescape)
    }

    /// Returns whether the list contains this option.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        has_option(&self.0, option)
    }

    /// Returns the whole list, unescaped, for messages.
    #[must_use]
    pub fn unescaped(&self) -> OsString {
        unescape(self.0.as_bytes())
    }
}

/// The propagation of a mount, from mountinfo's optional fields. Without any of them the mount is private.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Propagation {
    /// The peer group that the mount belongs to (`shared:N`).
    pub shared: Option<u32>,
    /// The peer group that the mount is a slave of (`master:N`).
    pub master: Option<u32>,
    /// The nearest dominant peer group below the process's root (`propagate_from:N`).
    pub propagate_from: Option<u32>,
    /// Whether the mount can't be bind mounted (`unbindable`).
    pub unbindable: bool,
}

/// The error of reading a mount table.
#[derive(Debug, thiserror::Error)]
pub enum MountInfoError {
    /// The file can't be read. The error is ENOENT or ESRCH if the process has ended.
    #[error("read {}: {source}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of opening or reading the file.
        source: std::io::Error,
    },
    /// A line is malformed. The kernel doesn't write such lines, so something other than a procfs is mounted at /proc.
    #[error("{}: line {line} ({text:?}) has no valid {field}; hint: check that /proc is a procfs", path.display())]
    InvalidLine {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line, starting at 1.
        line: usize,
        /// The field that is missing or malformed.
        field: &'static str,
        /// The text of the line.
        text: String,
    },
}

/// Reads the mounts that process `pid` sees, in the order of the table. Of two mounts with the same mount point, the
/// later one is on top.
pub fn read(pid: i32) -> Result<Vec<Mount>, MountInfoError> {
    MountInfo::read_process(pid)?.select(|_| true)
}

/// Reads the mounts that the calling *thread* sees: setns(2) and unshare(2) apply to one thread.
pub fn read_own() -> Result<Vec<Mount>, MountInfoError> {
    MountInfo::read_own()?.select(|_| true)
}

/// The size limit of a mount table in bytes. A pod can fill its own table with many mounts and long names; then an
/// operation on its volumes fails.
const MAX_SIZE: u64 = 64 * 1024 * 1024;

/// The contents of a mountinfo file. A node may have thousands of mounts, so only the selected lines are turned into
/// [`Mount`]s.
#[derive(Debug)]
pub struct MountInfo {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl MountInfo {
    /// Reads the mount table of process `pid`.
    pub fn read_process(pid: i32) -> Result<Self, MountInfoError> {
        Self::read(format!("/proc/{pid}/mountinfo").into())
    }

    /// Reads the mount table of the calling thread.
    pub fn read_own() -> Result<Self, MountInfoError> {
        Self::read("/proc/thread-self/mountinfo".into())
    }

    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            path: "mountinfo".into(),
            bytes: bytes.to_vec(),
        }
    }

    fn read(path: PathBuf) -> Result<Self, MountInfoError> {
        match bounded::read(&path, MAX_SIZE) {
            Ok(bytes) => Ok(Self { path, bytes }),
            Err(source) => Err(MountInfoError::Read { path, source }),
        }
    }

    /// Returns the mounts for whose lines `accepts` returns true, in the order of the table.
    pub fn select(
        &self,
        accepts: impl Fn(&MountInfoLine<'_>) -> bool,
    ) -> Result<Vec<Mount>, MountInfoError> {
        select(&self.bytes, &accepts).map_err(|bad| MountInfoError::InvalidLine {
            path: self.path.clone(),
            line: bad.line,
            field: bad.field,
            text: bad.text,
        })
    }

    /// Returns the mount with this id; `None` if it isn't in the table.
    pub fn mount(&self, id: u64) -> Result<Option<Mount>, MountInfoError> {
        let mounts = self.select(|line| u64::from(line.id) == id)?;
        Ok(mounts.into_iter().next())
    }
}

/// The first malformed line of a mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLine {
    /// The number of the line, starting at 1.
    pub line: usize,
    /// The field that is missing or malformed.
    pub field: &'static str,
    /// The text of the line; invalid UTF-8 is replaced.
    pub text: String,
}

/// Parses the contents of a mountinfo file.
pub fn parse(contents: &[u8]) -> Result<Vec<Mount>, InvalidLine> {
    select(contents, &|_| true)
}

/// Parses the contents of a mountinfo file, and returns the mounts for whose lines `accepts` returns true.
pub(crate) fn select(
    contents: &[u8],
    accepts: &dyn Fn(&MountInfoLine<'_>) -> bool,
) -> Result<Vec<Mount>, InvalidLine> {
    let mut mounts = Vec::new();
    for (index, text) in contents.split(|byte| *byte == b'\n').enumerate() {
        if text.is_empty() {
            continue;
        }
        let line = MountInfoLine::parse(text).map_err(|field| InvalidLine {
            line: index + 1,
            field,
            text: String::from_utf8_lossy(text).into_owned(),
        })?;
        if accepts(&line) {
            mounts.push(line.mount());
        }
    }
    Ok(mounts)
}

/// A line of mountinfo. Unlike in a [`Mount`], names still contain the kernel's escapes.
#[derive(Debug)]
pub struct MountInfoLine<'a> {
    /// The mount's id, as in [`Mount::id`].
    pub id: u32,
    /// The id of the parent: the mount that this mount is mounted on.
    pub parent: u32,
    /// The superblock's device number.
    pub device: DeviceNumber,
    root: &'a [u8],
    mount_point: &'a [u8],
    options: &'a [u8],
    /// The peer groups that the mount belongs to, or is a slave of.
    pub propagation: Propagation,
    /// The file system type.
    pub fstype: &'a [u8],
    source: &'a [u8],
    super_options: &'a [u8],
}

impl<'a> MountInfoLine<'a> {
    /// Parses a line such as
    /// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`. The error is the name of the
    /// invalid field.
    fn parse(line: &'a [u8]) -> Result<Self, &'static str> {
        // An empty source ("- tmpfs  rw") becomes an empty field.
        let mut fields = line.split(|byte| *byte == b' ');
        let mut next = |name: &'static str| fields.next().ok_or(name);
        let id = number(next("mount id")?).ok_or("mount id")?;
        let parent = number(next("parent id")?).ok_or("parent id")?;
        let device = text(next("device")?)
            .and_then(|text| text.parse().ok())
            .ok_or("device")?;
        let root = next("root")?;
        let mount_point = next("mount point")?;
        let options = next("options")?;
        let mut propagation = Propagation::default();
        loop {
            match next("separator")? {
                b"-" => break,
                tag => propagation.add(tag).ok_or("propagation tag")?,
            }
        }
        Ok(Self {
            id,
            parent,
            device,
            root,
            mount_point,
            options,
            propagation,
            fstype: next("file system type")?,
            source: next("source")?,
            super_options: next("superblock options")?,
        })
    }

    /// Returns whether the mount point is `directory`, or is below it.
    #[must_use]
    pub fn is_within(&self, directory: &Path) -> bool {
        if self.mount_point.contains(&b'\\') {
            return Path::new(&unescape(self.mount_point)).starts_with(directory);
        }
        Path::new(OsStr::from_bytes(self.mount_point)).starts_with(directory)
    }

    fn mount(&self) -> Mount {
        Mount {
            id: self.id,
            parent: self.parent,
            device: self.device,
            root: PathBuf::from(unescape(self.root)),
            mount_point: PathBuf::from(unescape(self.mount_point)),
            options: unescape(self.options),
            propagation: self.propagation,
            fstype: unescape(self.fstype),
            source: unescape(self.source),
            super_options: SuperOptions(OsStr::from_bytes(self.super_options).to_owned()),
        }
    }
}

impl Propagation {
    /// Adds an optional field. Ignores unknown fields, as the manual page requires. Returns `None` if the field is
    /// malformed.
    fn add(&mut self, tag: &[u8]) -> Option<()> {
        let tag = text(tag)?;
        let field = match tag.split_once(':') {
            Some(("shared", group)) => (&mut self.shared, group),
            Some(("master", group)) => (&mut self.master, group),
            Some(("propagate_from", group)) => (&mut self.propagate_from, group),
            _ => {
                self.unbindable |= tag == "unbindable";
                return Some(());
            }
        };
        *field.0 = Some(field.1.parse().ok()?);
        Some(())
    }
}

/// Returns whether a list of options, separated by commas, contains `option`.
#[must_use]
pub fn has_option(options: &OsStr, option: &str) -> bool {
    let mut options = options.as_encoded_bytes().split(|byte| *byte == b',');
    options.any(|listed| listed == option.as_bytes())
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

fn number(field: &[u8]) -> Option<u32> {
    text(field)?.parse().ok()
}

/// Decodes the escapes `\ooo` that the kernel writes for a space, tab, newline and backslash, and in sources also for
/// `#`.
fn unescape(field: &[u8]) -> OsString {
    // Most fields have no escape.
    let plain = field.iter().position(|byte| *byte == b'\\');
    let (plain, mut rest) = field.split_at(plain.unwrap_or(field.len()));
    let mut out = Vec::with_capacity(field.len());
    out.extend_from_slice(plain);
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after
            .split_first_chunk::<3>()
            .filter(|_| byte == b'\\')
            .and_then(|(digits, after)| Some((from_octal(*digits)?, after)));
        let (byte, after) = octal.unwrap_or((byte, after));
        out.push(byte);
        rest = after;
    }
    OsString::from_vec(out)
}

fn from_octal(digits: [u8; 3]) -> Option<u8> {
    let digits = std::str::from_utf8(&digits).ok()?;
    // from_str_radix accepts a sign.
    let is_plain = digits.bytes().all(|digit| digit.is_ascii_digit());
    u8::from_str_radix(digits, 8).ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests;
