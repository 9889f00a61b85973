//! The files of a hostile server, and the procedures on them (RFC 1813, section 3.3). Nothing is stored but groups and
//! modes: listings and attributes are made up from the numbers of files.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::xdr::{Decoder, Encoder};
use super::{Attack, FileKind, Procedure, lock};

/// The number of a file, which is also its handle.
type FileId = u64;

const ROOT: FileId = 1;
const FILE: FileId = 2;
const DIRECTORY: FileId = 3;
const INNER_FILE: FileId = 4;
const LINK: FileId = 5;
/// The first of the nested directories. Each contains the one with the next number.
const FIRST_NESTED: FileId = 1000;
/// The first of the files with generated names.
const FIRST_GENERATED: FileId = 1 << 32;
/// Number of entries of a listing for [`Attack::VanishingNames`].
const VANISHING_NAMES: u64 = 8;

/// A status other than `NFS3_OK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(u32);

impl Status {
    pub(super) const PERMISSION: Self = Self(1);
    pub(super) const NO_ENTRY: Self = Self(2);
    pub(super) const IO: Self = Self(5);
    pub(super) const NOT_A_DIRECTORY: Self = Self(20);
    pub(super) const INVALID: Self = Self(22);
    pub(super) const NO_SPACE: Self = Self(28);
    pub(super) const STALE: Self = Self(70);
    pub(super) const NOT_SUPPORTED: Self = Self(10004);
    pub(super) const UNKNOWN: Self = Self(77777);
}

#[derive(Debug)]
pub(super) struct Files {
    /// The target of the symbolic link.
    link: PathBuf,
    /// The modes and groups that clients have set.
    changes: Mutex<HashMap<FileId, Change>>,
    /// Number of attributes and listings sent so far, for those that change.
    replies: AtomicU64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Change {
    mode: Option<u32>,
    group: Option<u32>,
}

/// The arguments of READDIR or READDIRPLUS.
#[derive(Debug, Clone, Copy)]
struct ListArguments {
    /// The position after the last entry that the client has.
    cookie: u64,
    /// The number of bytes that the reply may have.
    limit: usize,
    is_plus: bool,
}

impl Files {
    pub(super) fn new(link: &Path) -> Self {
        Self {
            link: link.to_owned(),
            changes: Mutex::default(),
            replies: AtomicU64::new(0),
        }
    }

    /// Forgets the groups and modes that clients have set.
    pub(super) fn reset(&self) {
        lock(&self.changes).clear();
    }

    /// Carries out a call, and writes its results. Returns `None` if the arguments can't be read.
    pub(super) fn call(
        &self,
        attack: Attack,
        procedure: Procedure,
        arguments: &mut Decoder<'_>,
        results: &mut Encoder,
    ) -> Option<()> {
        let view = View {
            files: self,
            attack,
        };
        match procedure {
            Procedure::Null | Procedure::Unmount => return Some(()),
            Procedure::Mount => {
                const AUTH_SYS: u32 = 1;
                let _path = arguments.opaque()?;
                if let Some(status) = view.failure(procedure) {
                    results.u32(status.0);
                    return Some(());
                }
                results.u32(0);
                results.opaque(&ROOT.to_be_bytes());
                // One flavor.
                results.u32(1);
                results.u32(AUTH_SYS);
                return Some(());
            }
            _ => {}
        }
        let file = arguments.opaque()?;
        let file = file.try_into().map(FileId::from_be_bytes).ok()?;
        let mut ok = Encoder::new(results.has_huge_lengths());
        match view.failure(procedure) {
            Some(status) => fail(results, status),
            None => match view.answer(procedure, file, arguments, &mut ok)? {
                Ok(()) => {
                    results.u32(0);
                    results.append(ok);
                }
                Err(status) => fail(results, status),
            },
        }
        Some(())
    }
}

/// The files as one attack presents them.
#[derive(Clone, Copy)]
struct View<'a> {
    files: &'a Files,
    attack: Attack,
}

impl View<'_> {
    fn failure(self, procedure: Procedure) -> Option<Status> {
        match self.attack {
            Attack::Fails(failing, error) if failing.includes(procedure) => Some(error.into()),
            _ => None,
        }
    }

    /// Writes the results after the status. The outer `None` means that the arguments can't be read.
    fn answer(
        self,
        procedure: Procedure,
        file: FileId,
        arguments: &mut Decoder<'_>,
        ok: &mut Encoder,
    ) -> Option<Result<(), Status>> {
        match procedure {
            Procedure::GetAttributes => self.attributes(file, ok),
            Procedure::SetAttributes => {
                let change = read_change(arguments)?;
                if self.attack != Attack::IgnoredChanges {
                    let mut changes = lock(&self.files.changes);
                    let present = changes.entry(file).or_default();
                    present.mode = change.mode.or(present.mode);
                    present.group = change.group.or(present.group);
                }
                // No attributes from before the change.
                ok.u32(0);
                self.some_attributes(file, ok);
            }
            Procedure::Lookup => match self.look_up(file, arguments.opaque()?) {
                Ok(found) => {
                    ok.opaque(&found.to_be_bytes());
                    self.some_attributes(found, ok);
                    self.some_attributes(file, ok);
                }
                Err(status) => return Some(Err(status)),
            },
            Procedure::Access => {
                let wanted = arguments.u32()?;
                self.some_attributes(file, ok);
                ok.u32(wanted);
            }
            Procedure::ReadLink if self.kind(file) == FileKind::Symlink => {
                self.some_attributes(file, ok);
                ok.opaque(self.files.link.as_os_str().as_bytes());
            }
            Procedure::ReadLink => return Some(Err(Status::INVALID)),
            Procedure::List | Procedure::ListPlus => {
                let is_plus = procedure == Procedure::ListPlus;
                let cookie = arguments.u64()?;
                let _verifier = arguments.u64()?;
                // READDIRPLUS has a limit without attributes and handles before the limit of the reply.
                let _names_limit = if is_plus { arguments.u32()? } else { 0 };
                let list = ListArguments {
                    cookie,
                    limit: usize::try_from(arguments.u32()?).ok()?,
                    is_plus,
                };
                return Some(self.list(file, list, ok));
            }
            Procedure::Usage => self.usage(file, ok),
            Procedure::Info => self.info(file, ok),
            Procedure::PathConf => {
                self.some_attributes(file, ok);
                // Limits of links and names; names aren't cut, chown is restricted, and cases are kept apart.
                for value in [32_000, 255, 1, 1, 0, 1] {
                    ok.u32(value);
                }
            }
            _ => return Some(Err(Status::NOT_SUPPORTED)),
        }
        Some(Ok(()))
    }

    fn kind(self, file: FileId) -> FileKind {
        match (file, self.attack) {
            (ROOT, Attack::Root(kind)) => kind,
            (FILE, Attack::ChangingType) => {
                let replies = self.files.replies.fetch_add(1, Ordering::Relaxed);
                if replies.is_multiple_of(2) {
                    FileKind::File
                } else {
                    FileKind::Directory
                }
            }
            (ROOT | DIRECTORY | FIRST_NESTED..FIRST_GENERATED, _) => FileKind::Directory,
            (LINK, _) => FileKind::Symlink,
            _ => FileKind::File,
        }
    }

    /// Writes `fattr3`.
    fn attributes(self, file: FileId, out: &mut Encoder) {
        let kind = self.kind(file);
        let (number, default_mode) = match kind {
            FileKind::File => (1, 0o644),
            FileKind::Directory => (2, 0o755),
            FileKind::BlockDevice => (3, 0o600),
            FileKind::CharacterDevice => (4, 0o600),
            FileKind::Symlink => (5, 0o777),
            FileKind::Pipe => (7, 0o644),
        };
        let change = lock(&self.files.changes)
            .get(&file)
            .copied()
            .unwrap_or_default();
        // Type, mode, links, owner and group.
        let links = if kind == FileKind::Directory { 2 } else { 1 };
        let mode = change.mode.unwrap_or(default_mode);
        for value in [number, mode, links, 0, change.group.unwrap_or_default()] {
            out.u32(value);
        }
        // Size and space in use.
        out.u64(4096);
        out.u64(4096);
        // The device, which is the first disk of a virtual machine.
        out.u32(254);
        out.u32(0);
        // The number of the file system.
        out.u64(1);
        let is_changing = self.attack == Attack::ChangingNumber && file == DIRECTORY;
        out.u64(if is_changing {
            (1 << 40) + self.files.replies.fetch_add(1, Ordering::Relaxed)
        } else {
            file
        });
        // Times of the last access, of the last change of the contents, and of the attributes.
        for _ in 0..3 {
            out.u64(1 << 60);
        }
    }

    /// Writes `post_op_attr` with attributes.
    fn some_attributes(self, file: FileId, out: &mut Encoder) {
        out.u32(1);
        self.attributes(file, out);
    }

    /// Returns the entry of a directory at an index.
    fn entry(self, directory: FileId, index: u64) -> Option<(Vec<u8>, FileId)> {
        let named = |name: &str, file| Some((name.as_bytes().to_vec(), file));
        match (directory, index) {
            (ROOT, 0) => named("file", FILE),
            (ROOT, 1) => named("directory", DIRECTORY),
            (ROOT, 2) => named("link", LINK),
            (ROOT, index) => self.generated_entry(index - 3),
            (DIRECTORY, 0) => named("file", INNER_FILE),
            (DIRECTORY, 1) if self.attack == Attack::ContainsParent => {
                named("directory", DIRECTORY)
            }
            (FIRST_NESTED..FIRST_GENERATED, index) => match self.attack {
                Attack::EndlesslyDeep if index == 0 => named("nested", directory + 1),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns an entry that only an attack adds to the root.
    fn generated_entry(self, index: u64) -> Option<(Vec<u8>, FileId)> {
        let file = FIRST_GENERATED + index;
        match self.attack {
            Attack::Names(names) => {
                let name = names.get(usize::try_from(index).ok()?)?;
                Some((name.as_bytes().to_vec(), file))
            }
            Attack::LongNames { length, count } if index < count => {
                Some((format!("{index:0>length$}").into_bytes(), file))
            }
            Attack::ContainsItself if index == 0 => Some((b"root".to_vec(), ROOT)),
            Attack::EndlesslyDeep if index == 0 => Some((b"nested".to_vec(), FIRST_NESTED)),
            Attack::EndlessListing => Some((format!("new-{index}").into_bytes(), file)),
            Attack::RepeatedListing => Some((b"same".to_vec(), file)),
            Attack::VanishingNames if index < VANISHING_NAMES => {
                let number = self.files.replies.fetch_add(1, Ordering::Relaxed);
                Some((format!("gone-{number}").into_bytes(), FIRST_NESTED + number))
            }
            _ => None,
        }
    }

    fn look_up(self, directory: FileId, name: &[u8]) -> Result<FileId, Status> {
        if self.kind(directory) != FileKind::Directory {
            return Err(Status::NOT_A_DIRECTORY);
        }
        let generated = || {
            let name = std::str::from_utf8(name).ok()?;
            let number = name.strip_prefix("new-").unwrap_or(name);
            let index: u64 = number.parse().ok()?;
            Some(FIRST_GENERATED + index)
        };
        match (self.attack, name) {
            (_, b"." | b"..") => Ok(directory),
            (Attack::EndlessListing | Attack::LongNames { .. }, _)
                if directory == ROOT && generated().is_some() =>
            {
                Ok(generated().unwrap_or(FILE))
            }
            (Attack::RepeatedListing, b"same") => Ok(FIRST_GENERATED),
            _ => {
                let mut entries = (0..64).map_while(|index| self.entry(directory, index));
                let found = entries.find(|(found, file)| {
                    let vanishes = self.attack == Attack::VanishingNames && *file >= FIRST_NESTED;
                    found == name && !vanishes
                });
                found.map(|(_, file)| file).ok_or(Status::NO_ENTRY)
            }
        }
    }

    fn list(
        self,
        directory: FileId,
        arguments: ListArguments,
        ok: &mut Encoder,
    ) -> Result<(), Status> {
        /// Size of everything but the entries, and of an entry without its name and attributes.
        const FIXED_SIZE: usize = 128;
        const ENTRY_SIZE: usize = 32;
        const PLUS_SIZE: usize = 108;
        if self.kind(directory) != FileKind::Directory {
            return Err(Status::NOT_A_DIRECTORY);
        }
        self.some_attributes(directory, ok);
        // The verifier of cookies.
        ok.u64(0);
        let mut index = arguments.cookie;
        let mut size = FIXED_SIZE;
        let is_complete = loop {
            let Some((name, file)) = self.entry(directory, index) else {
                break true;
            };
            size += ENTRY_SIZE + name.len() + if arguments.is_plus { PLUS_SIZE } else { 0 };
            if size > arguments.limit {
                break false;
            }
            index += 1;
            let is_repeated = self.attack == Attack::RepeatedListing && index > 3;
            // There is another entry.
            ok.u32(1);
            ok.u64(file);
            ok.opaque(&name);
            ok.u64(if is_repeated { 4 } else { index });
            if arguments.is_plus {
                self.some_attributes(file, ok);
                ok.u32(1);
                ok.opaque(&file.to_be_bytes());
            }
        };
        ok.u32(0);
        ok.u32(u32::from(is_complete));
        Ok(())
    }

    fn usage(self, file: FileId, ok: &mut Encoder) {
        let ordinary = [1 << 30, 1 << 29, 1 << 29, 1000, 900, 900];
        let values = match self.attack {
            Attack::HugeUsage => [u64::MAX; 6],
            _ => ordinary,
        };
        self.some_attributes(file, ok);
        for value in values {
            ok.u64(value);
        }
        // The number of seconds for which this stays true.
        ok.u32(0);
    }

    fn info(self, file: FileId, ok: &mut Encoder) {
        const SIZE: u32 = 65_536;
        /// Hard links and symbolic links, a homogeneous file system, times that can be set.
        const PROPERTIES: u32 = 0x1b;
        self.some_attributes(file, ok);
        // Maximum, preferred size and multiple of reads and writes; preferred size of listings.
        for value in [SIZE, SIZE, 4096, SIZE, SIZE, 4096, SIZE] {
            ok.u32(value);
        }
        ok.u64(1 << 40);
        // The resolution of times: one nanosecond.
        ok.u32(0);
        ok.u32(1);
        ok.u32(PROPERTIES);
    }
}

/// Writes an error as the result of any procedure.
fn fail(results: &mut Encoder, status: Status) {
    results.u32(status.0);
    // No attributes: enough for all procedures, up to the two directories of RENAME.
    for _ in 0..4 {
        results.u32(0);
    }
}

/// Reads `sattr3`.
fn read_change(arguments: &mut Decoder<'_>) -> Option<Change> {
    let (mut change, mut owner) = (Change::default(), None);
    for value in [&mut change.mode, &mut owner, &mut change.group] {
        if arguments.u32()? != 0 {
            *value = Some(arguments.u32()?);
        }
    }
    Some(change)
}
