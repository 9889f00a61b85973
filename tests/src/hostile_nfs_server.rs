//! An NFS server that attacks its clients. It speaks version 3 (RFC 1813) over ONC RPC (RFC 5531), with MOUNT and NFS on
//! one TCP port. The kernel's client mounts it with [`HostileNfsServer::options`].

mod files;
mod xdr;

use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use self::files::{Files, Status};
use self::xdr::{Decoder, Encoder};

/// The way in which a server attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// The server is an ordinary one, apart from a symbolic link that leads out of the share.
    Nothing,
    /// The root lists files with these names.
    Names(&'static [&'static str]),
    /// The root lists so many files, whose names have this length in bytes.
    LongNames { length: usize, count: u64 },
    /// The root lists itself as a directory.
    ContainsItself,
    /// The root lists this one of its directories as a directory in itself.
    ContainsParent,
    /// Each directory contains another one.
    EndlesslyDeep,
    /// The listing of the root has a new name after each name.
    EndlessListing,
    /// The listing of the root has the same name and position over and over.
    RepeatedListing,
    /// Each listing of the root has directories with new names, which don't exist any more when they are looked up.
    VanishingNames,
    /// A file is a directory in every second reply.
    ChangingType,
    /// A directory has another number in each reply.
    ChangingNumber,
    /// Calls of this procedure return an error.
    Fails(Procedure, NfsError),
    /// The server says that it has changed group and mode, and hasn't.
    IgnoredChanges,
    /// The exported path is no directory.
    Root(FileKind),
    /// All numbers in the usage are as large as possible.
    HugeUsage,
    /// Replies to this procedure are damaged.
    Damaged(Procedure, Damage),
}

/// The procedures of MOUNT and NFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Procedure {
    /// Stands for all procedures.
    Every,
    /// Stands for all procedures but `Null`.
    EveryButNull,
    Null,
    Mount,
    Unmount,
    GetAttributes,
    SetAttributes,
    Lookup,
    Access,
    ReadLink,
    /// Stands for `ListPlus` too, if an attack names it.
    List,
    ListPlus,
    Usage,
    Info,
    PathConf,
    /// A procedure of NFS that the server doesn't support.
    Other,
}

impl Procedure {
    fn includes(self, called: Self) -> bool {
        match self {
            Self::Every => true,
            Self::EveryButNull => called != Self::Null,
            Self::List => matches!(called, Self::List | Self::ListPlus),
            _ => self == called,
        }
    }
}

/// An error in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NfsError {
    Io,
    Stale,
    Permission,
    NoSpace,
    /// An error number that no server has.
    Unknown,
}

impl From<NfsError> for Status {
    fn from(error: NfsError) -> Self {
        match error {
            NfsError::Io => Self::IO,
            NfsError::Stale => Self::STALE,
            NfsError::Permission => Self::PERMISSION,
            NfsError::NoSpace => Self::NO_SPACE,
            NfsError::Unknown => Self::UNKNOWN,
        }
    }
}

/// Damage to a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// There is no reply.
    Missing,
    /// The connection is closed instead.
    Closed,
    /// Everything after the number of the transaction is random.
    Random,
    /// Only the number of the transaction and four more words are sent.
    Truncated,
    /// The record is said to have two gigabytes.
    HugeRecord,
    /// All lengths of handles and names are 4294967295.
    HugeLengths,
    /// The reply belongs to another transaction.
    OtherTransaction,
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    BlockDevice,
    CharacterDevice,
    Pipe,
}

/// A running server on 127.0.0.1. It is stopped when this is dropped, and closes its connections.
#[derive(Debug)]
pub struct HostileNfsServer {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    attack: Mutex<Attack>,
    files: Files,
    is_over: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
    calls: AtomicU64,
}

const MOUNT_PROGRAM: u32 = 100_005;
const NFS_PROGRAM: u32 = 100_003;
const VERSION: u32 = 3;

/// The reasons why a call is accepted or not (RFC 5531, section 9).
const SUCCESS: u32 = 0;
const PROGRAM_UNAVAILABLE: u32 = 1;
const PROCEDURE_UNAVAILABLE: u32 = 3;
const GARBAGE_ARGUMENTS: u32 = 4;

impl HostileNfsServer {
    /// Starts a server. Its symbolic link leads to `link`.
    pub fn start(attack: Attack, link: &Path) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            attack: Mutex::new(attack),
            files: Files::new(link),
            is_over: AtomicBool::new(false),
            connections: Mutex::default(),
            calls: AtomicU64::new(0),
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.accept(&listener))
        };
        Self {
            port,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Returns the exported directory as a share.
    pub fn share(&self) -> &'static str {
        "127.0.0.1:/export"
    }

    /// Returns the mount options with which the kernel finds this server.
    pub fn options(&self) -> String {
        let port = self.port;
        format!("vers=3,nolock,proto=tcp,port={port},mountport={port}")
    }

    /// Attacks in another way from now on, with files whose groups and modes nobody has set. Closes all connections, so
    /// that the client repeats calls without a reply.
    pub fn attack(&self, attack: Attack) {
        *lock(&self.shared.attack) = attack;
        self.shared.files.reset();
        self.shared.close_connections();
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::Relaxed)
    }
}

impl Drop for HostileNfsServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.close_connections();
        // Ends the wait for a connection.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn accept(&self, listener: &TcpListener) {
        thread::scope(|scope| {
            for stream in listener.incoming().flatten() {
                let mut connections = lock(&self.connections);
                if self.is_over.load(Ordering::SeqCst) {
                    return;
                }
                connections.extend(stream.try_clone());
                scope.spawn(|| {
                    // An error ends the connection.
                    let _ = self.serve(stream);
                });
            }
        });
    }

    fn close_connections(&self) {
        for connection in lock(&self.connections).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        loop {
            let record = xdr::read_record(&mut stream)?;
            self.calls.fetch_add(1, Ordering::Relaxed);
            let attack = *lock(&self.attack);
            let Some(reply) = self.reply(attack, &record) else {
                return Ok(());
            };
            if reply.damage == Some(Damage::Closed) {
                let _ = stream.shutdown(Shutdown::Both);
                return Ok(());
            }
            stream.write_all(&reply.bytes())?;
        }
    }

    /// Returns the reply to a call; `None` if the record isn't a call.
    fn reply(&self, attack: Attack, record: &[u8]) -> Option<Reply> {
        let mut call = Decoder::new(record);
        let transaction = call.u32()?;
        let header = call.call_header()?;
        let procedure = procedure(header.program, header.version, header.procedure);
        let damage = match (attack, procedure) {
            (Attack::Damaged(damaged, damage), Ok(procedure)) if damaged.includes(procedure) => {
                Some(damage)
            }
            _ => None,
        };
        let mut results = Encoder::new(damage == Some(Damage::HugeLengths));
        let accepted = match procedure {
            Ok(procedure) => {
                let done = self.files.call(attack, procedure, &mut call, &mut results);
                done.map_or(GARBAGE_ARGUMENTS, |()| SUCCESS)
            }
            Err(reason) => reason,
        };
        Some(Reply {
            transaction,
            accepted,
            results,
            damage,
        })
    }
}

/// Returns a procedure by its numbers, or the reason why a call isn't accepted.
fn procedure(program: u32, version: u32, number: u32) -> Result<Procedure, u32> {
    match (program, version, number) {
        (MOUNT_PROGRAM | NFS_PROGRAM, VERSION, 0) => Ok(Procedure::Null),
        (MOUNT_PROGRAM, VERSION, 1) => Ok(Procedure::Mount),
        (MOUNT_PROGRAM, VERSION, 3) => Ok(Procedure::Unmount),
        (MOUNT_PROGRAM, VERSION, _) => Err(PROCEDURE_UNAVAILABLE),
        (NFS_PROGRAM, VERSION, number) => match number {
            1 => Ok(Procedure::GetAttributes),
            2 => Ok(Procedure::SetAttributes),
            3 => Ok(Procedure::Lookup),
            4 => Ok(Procedure::Access),
            5 => Ok(Procedure::ReadLink),
            16 => Ok(Procedure::List),
            17 => Ok(Procedure::ListPlus),
            18 => Ok(Procedure::Usage),
            19 => Ok(Procedure::Info),
            20 => Ok(Procedure::PathConf),
            6..=21 => Ok(Procedure::Other),
            _ => Err(PROCEDURE_UNAVAILABLE),
        },
        // For example the ACLs of version 3, which the client does without.
        _ => Err(PROGRAM_UNAVAILABLE),
    }
}

/// A reply to a call, before it is damaged.
struct Reply {
    transaction: u32,
    accepted: u32,
    results: Encoder,
    damage: Option<Damage>,
}

impl Reply {
    /// Returns the reply as one record.
    fn bytes(self) -> Vec<u8> {
        const REPLY: u32 = 1;
        const ACCEPTED: u32 = 0;
        const NO_VERIFIER: [u32; 2] = [0, 0];
        let [flavor, length] = NO_VERIFIER;
        let mut reply = Encoder::new(false);
        for word in [REPLY, ACCEPTED, flavor, length, self.accepted] {
            reply.u32(word);
        }
        let mut message = self.transaction.to_be_bytes().to_vec();
        message.extend(reply.into_bytes());
        message.extend(self.results.into_bytes());
        match self.damage {
            Some(Damage::Missing) => return Vec::new(),
            Some(Damage::Random) => {
                // The numbers of a linear congruential generator, the same in each run.
                let mut number = self.transaction;
                for byte in &mut message[4..] {
                    number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *byte = number.to_be_bytes()[0];
                }
            }
            Some(Damage::Truncated) => message.truncate(20),
            Some(Damage::OtherTransaction) => message[0] ^= 0x80,
            Some(Damage::HugeRecord) => {
                let mut record = u32::MAX.to_be_bytes().to_vec();
                record.extend(message);
                return record;
            }
            Some(Damage::Closed | Damage::HugeLengths) | None => {}
        }
        xdr::record(&message)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
