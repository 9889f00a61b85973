//! The encoding of calls and replies: XDR (RFC 4506), in records over TCP (RFC 5531, section 11).

use std::io::{self, Read};

const LAST_FRAGMENT: u32 = 1 << 31;
/// The longest record in bytes that a client may send. The longest calls write data, of one megabyte at most.
const MAX_RECORD: usize = 2 << 20;

/// Reads a record, whose fragments are joined. Fails at the end of the stream.
pub(super) fn read_record(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut record = Vec::new();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let length = usize::try_from(mark & !LAST_FRAGMENT).expect("u32 fits into usize");
        let start = record.len();
        if start + length > MAX_RECORD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        record.resize(start + length, 0);
        stream.read_exact(&mut record[start..])?;
        if mark & LAST_FRAGMENT != 0 {
            return Ok(record);
        }
    }
}

/// Returns a message as a record of one fragment.
pub(super) fn record(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short message");
    let mut record = (LAST_FRAGMENT | length).to_be_bytes().to_vec();
    record.extend(message);
    record
}

/// The numbers in the header of a call (RFC 5531, section 9).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallHeader {
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
}

/// A reader of XDR. Methods return `None` at the end of the data.
#[derive(Debug)]
pub(super) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// Reads data of variable length, such as a name.
    pub(super) fn opaque(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.u32()?).ok()?;
        let padded = length.checked_next_multiple_of(4)?;
        let (data, rest) = self.0.split_at_checked(padded)?;
        self.0 = rest;
        Some(&data[..length])
    }

    /// Reads the header of a call after the number of the transaction. `None` also if this isn't a call.
    pub(super) fn call_header(&mut self) -> Option<CallHeader> {
        const CALL: u32 = 0;
        const RPC_VERSION: u32 = 2;
        if (self.u32()?, self.u32()?) != (CALL, RPC_VERSION) {
            return None;
        }
        let header = CallHeader {
            program: self.u32()?,
            version: self.u32()?,
            procedure: self.u32()?,
        };
        for _credential_and_verifier in 0..2 {
            self.u32()?;
            self.opaque()?;
        }
        Some(header)
    }
}

/// A writer of XDR.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    bytes: Vec<u8>,
    /// Whether each length is written as 4294967295.
    has_huge_lengths: bool,
}

impl Encoder {
    pub(super) fn new(has_huge_lengths: bool) -> Self {
        Self {
            bytes: Vec::new(),
            has_huge_lengths,
        }
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_be_bytes());
    }

    pub(super) fn opaque(&mut self, data: &[u8]) {
        let length = u32::try_from(data.len()).expect("short data");
        self.u32(if self.has_huge_lengths {
            u32::MAX
        } else {
            length
        });
        self.bytes.extend(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(super) fn has_huge_lengths(&self) -> bool {
        self.has_huge_lengths
    }

    pub(super) fn append(&mut self, other: Self) {
        self.bytes.extend(other.bytes);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
