//! `/proc/<pid>/mountinfo` (`proc_pid_mountinfo(5)`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::bounded;

use crate::device::DeviceNumber;

/// One mount of a mount namespace. Names are the bytes the kernel holds: unescaped, not
/// necessarily UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount's id; statx's `stx_mnt_id`. Used again after the mount is gone.
    pub id: u32,
    /// The id of the mount it is on; its own for the namespace's root, and one that isn't listed
    /// where that is outside the process's root directory.
    pub parent: u32,
    /// The superblock's device. Not always `st_dev`: btrfs gives each subvolume its own.
    pub device: DeviceNumber,
    /// The directory (or file) of the file system that is mounted; it ends in `//deleted` if that was removed.
    pub root: PathBuf,
    /// The mount point, relative to the process's root directory.
    pub mount_point: PathBuf,
    /// The mount's own options, comma separated, as `rw,nosuid,relatime`.
    pub options: OsString,
    /// The peer groups that it belongs to.
    pub propagation: Propagation,
    /// The type, with a subtype after a dot (`fuse.sshfs`).
    pub fstype: OsString,
    /// The source as it was given to the mount; empty if there was none.
    pub source: OsString,
    /// The options of its superblock, as the kernel shows them.
    pub super_options: SuperOptions,
}

/// The options of a superblock, comma separated, as the kernel writes them: with escapes in names and values.
/// Two lists are equal if their options are, however they are escaped.
#[derive(Debug, Clone)]
pub struct SuperOptions(OsString);

impl PartialEq for SuperOptions {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for SuperOptions {}

impl SuperOptions {
    /// Returns each option, unescaped. The kernel writes a comma within a value as `\054` (`seq_show_option` of
    /// `linux/seq_file.h`), so the list has to be split before anything is unescaped.
    pub fn iter(&self) -> impl Iterator<Item = OsString> + '_ {
        let options = self.0.as_bytes().split(|byte| *byte == b',');
        options.map(unescape)
    }

    /// Whether this option is among them.
    #[must_use]
    pub fn has(&self, wanted: &str) -> bool {
        has_option(&self.0, wanted)
    }

    /// Returns the whole list, unescaped, as it is shown to people.
    #[must_use]
    pub fn unescaped(&self) -> OsString {
        unescape(self.0.as_bytes())
    }
}

/// The optional fields. All absent: private.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Propagation {
    /// `shared:N`: the peer group it belongs to.
    pub shared: Option<u32>,
    /// `master:N`: the peer group it is a slave of.
    pub master: Option<u32>,
    /// `propagate_from:N`: the nearest dominant group below the process's root.
    pub propagate_from: Option<u32>,
    /// `unbindable`.
    pub unbindable: bool,
}

/// An error of reading a mount table.
#[derive(Debug, thiserror::Error)]
pub enum MountInfoError {
    /// The file can't be read; ENOENT or ESRCH when the process is gone.
    #[error("read {}: {source}", path.display())]
    Read {
        /// The file that can't be read.
        path: PathBuf,
        /// The error of reading it.
        source: std::io::Error,
    },
    /// A line isn't one of mountinfo's. The kernel doesn't write such lines: something else is
    /// mounted on /proc.
    #[error("{}: line {line} ({text:?}) has no valid {field}; hint: is that a procfs?", path.display())]
    InvalidLine {
        /// The file that was read.
        path: PathBuf,
        /// The number of the line, counted from 1.
        line: usize,
        /// The field that is missing or malformed.
        field: &'static str,
        /// The line.
        text: String,
    },
}

/// Reads the mounts that process `pid` sees, in the order they were mounted over one another: of
/// two at the same place the later one is on top.
pub fn read(pid: i32) -> Result<Vec<Mount>, MountInfoError> {
    MountInfo::of_process(pid)?.select(|_| true)
}

/// Reads the mounts that the calling *thread* sees: setns(2) and unshare(2) change one thread.
pub fn read_own() -> Result<Vec<Mount>, MountInfoError> {
    MountInfo::of_thread()?.select(|_| true)
}

/// Of a mount table. A pod may fill its own, with mounts that have long names and many; what can't be
/// read of it is an error of that pod's volumes.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// A namespace's mounts as they were read: a node has thousands, of which a few are wanted.
#[derive(Debug)]
pub struct MountInfo {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl MountInfo {
    /// Reads the mounts that process `pid` sees, as [`read`] does.
    pub fn of_process(pid: i32) -> Result<Self, MountInfoError> {
        Self::read(format!("/proc/{pid}/mountinfo").into())
    }

    /// Reads the mounts that the calling thread sees, as [`read_own`] does.
    pub fn of_thread() -> Result<Self, MountInfoError> {
        Self::read("/proc/thread-self/mountinfo".into())
    }

    /// A table with these contents.
    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self {
            path: "mountinfo".into(),
            bytes: bytes.to_vec(),
        }
    }

    fn read(path: PathBuf) -> Result<Self, MountInfoError> {
        match bounded::read(&path, MOST_BYTES) {
            Ok(bytes) => Ok(Self { path, bytes }),
            Err(source) => Err(MountInfoError::Read { path, source }),
        }
    }

    /// The mounts whose lines are wanted, in their order.
    pub fn select(
        &self,
        wanted: impl Fn(&MountInfoLine<'_>) -> bool,
    ) -> Result<Vec<Mount>, MountInfoError> {
        select(&self.bytes, &wanted).map_err(|bad| MountInfoError::InvalidLine {
            path: self.path.clone(),
            line: bad.line,
            field: bad.field,
            text: bad.text,
        })
    }

    /// The mount with an id.
    pub fn mount(&self, id: u64) -> Result<Option<Mount>, MountInfoError> {
        let mounts = self.select(|line| u64::from(line.id) == id)?;
        Ok(mounts.into_iter().next())
    }
}

/// The first line that can't be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLine {
    /// Counted from 1.
    pub line: usize,
    /// The field that is missing or malformed.
    pub field: &'static str,
    /// The line, lossily.
    pub text: String,
}

/// Parses the contents of a mountinfo file.
pub fn parse(contents: &[u8]) -> Result<Vec<Mount>, InvalidLine> {
    select(contents, &|_| true)
}

/// Those of the lines that are wanted.
pub(crate) fn select(
    contents: &[u8],
    wanted: &dyn Fn(&MountInfoLine<'_>) -> bool,
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
        if wanted(&line) {
            mounts.push(line.mount());
        }
    }
    Ok(mounts)
}

/// A [`Mount`] as the kernel writes it, with escapes in its names.
#[derive(Debug)]
pub struct MountInfoLine<'a> {
    /// The mount's id.
    pub id: u32,
    /// The id of the mount it is on.
    pub parent: u32,
    /// The superblock's device.
    pub device: DeviceNumber,
    root: &'a [u8],
    mount_point: &'a [u8],
    options: &'a [u8],
    /// The peer groups that the mount is in, or a slave of.
    pub propagation: Propagation,
    /// The type.
    pub fstype: &'a [u8],
    source: &'a [u8],
    super_options: &'a [u8],
}

impl<'a> MountInfoLine<'a> {
    /// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
    fn parse(line: &'a [u8]) -> Result<Self, &'static str> {
        // Splitting at single spaces keeps an empty source ("- tmpfs  rw") an empty field.
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

    /// Whether it is mounted on a directory, or below it.
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
    /// Tags that aren't known yet are passed over, as the manual page asks.
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

/// Tells whether a comma-separated list of options has this one.
#[must_use]
pub fn has_option(options: &OsStr, wanted: &str) -> bool {
    let mut options = options.as_encoded_bytes().split(|byte| *byte == b',');
    options.any(|option| option == wanted.as_bytes())
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

fn number(field: &[u8]) -> Option<u32> {
    text(field)?.parse().ok()
}

/// The kernel writes space, tab, newline, backslash (and `#` in sources) as `\ooo`.
fn unescape(field: &[u8]) -> OsString {
    // Few have one.
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
    // from_str_radix takes a sign.
    let plain = digits.bytes().all(|digit| digit.is_ascii_digit());
    u8::from_str_radix(digits, 8).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests;
