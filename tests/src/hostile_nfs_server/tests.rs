use std::net::{Ipv4Addr, TcpStream};

use super::*;

/// Calls a procedure without credentials, and returns the reply after the number of the transaction.
fn call(server: &HostileNfsServer, numbers: [u32; 3], arguments: &[u8]) -> io::Result<Vec<u8>> {
    const TRANSACTION: u32 = 7;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port))?;
    let mut message = Encoder::new(false);
    let [program, version, procedure] = numbers;
    for word in [TRANSACTION, 0, 2, program, version, procedure, 0, 0, 0, 0] {
        message.u32(word);
    }
    let mut message = message.into_bytes();
    message.extend(arguments);
    stream.write_all(&xdr::record(&message))?;
    let reply = xdr::read_record(&mut stream)?;
    assert_eq!(Decoder::new(&reply).u32(), Some(TRANSACTION));
    Ok(reply[4..].to_vec())
}

/// Returns the words of a reply.
fn words(reply: &[u8]) -> Vec<u32> {
    let mut decoder = Decoder::new(reply);
    std::iter::from_fn(|| decoder.u32()).collect()
}

/// Returns the arguments of a procedure whose first one is the root's handle.
fn on_root(further: &[u32]) -> Vec<u8> {
    let mut arguments = Encoder::new(false);
    arguments.opaque(&1_u64.to_be_bytes());
    for word in further {
        arguments.u32(*word);
    }
    arguments.into_bytes()
}

fn start(attack: Attack) -> HostileNfsServer {
    HostileNfsServer::start(attack, Path::new("/etc"))
}

const LIST: [u32; 3] = [100_003, 3, 16];

/// Returns the names in a listing of the root, and whether it is complete.
fn list(server: &HostileNfsServer, cookie: u32, limit: u32) -> (Vec<String>, bool) {
    let reply = call(server, LIST, &on_root(&[0, cookie, 0, 0, limit])).unwrap();
    let mut reply = Decoder::new(&reply);
    // The header, the status, whether there are attributes, 84 bytes of them, and the verifier.
    for _ in 0..5 + 2 + 21 + 2 {
        reply.u32().unwrap();
    }
    let mut names = Vec::new();
    while reply.u32() == Some(1) {
        let _number = reply.u64().unwrap();
        let name = reply.opaque().unwrap();
        names.push(String::from_utf8(name.to_vec()).unwrap());
        let _cookie = reply.u64().unwrap();
    }
    (names, reply.u32() == Some(1))
}

#[test]
fn the_root_is_mounted_and_listed() {
    let server = start(Attack::Nothing);
    let header = [1, 0, 0, 0, 0];
    let mounted = call(&server, [100_005, 3, 1], &[0, 0, 0, 1, b'/', 0, 0, 0]).unwrap();
    assert_eq!(words(&mounted), [&header[..], &[0, 8, 0, 1, 1, 1]].concat());
    assert_eq!(words(&call(&server, [100_003, 3, 0], &[]).unwrap()), header);
    let attributes = words(&call(&server, [100_003, 3, 1], &on_root(&[])).unwrap());
    assert_eq!(attributes[5..11], [0, 2, 0o755, 2, 0, 0]);
    assert_eq!(attributes.len(), 5 + 1 + 21);
    let all = ["file", "directory", "link"].map(str::to_owned);
    assert_eq!(list(&server, 0, 4096), (all.to_vec(), true));
    assert_eq!(list(&server, 1, 4096), (all[1..].to_vec(), true));
    assert_eq!(list(&server, 0, 170), (all[..1].to_vec(), false));
    assert_eq!(server.calls(), 6);
}

#[test]
fn calls_that_the_server_lacks_are_refused() {
    let server = start(Attack::Nothing);
    for (numbers, arguments, expected) in [
        ([100_227, 3, 0], Vec::new(), [1, 0, 0, 0, 1]),
        ([100_003, 4, 0], Vec::new(), [1, 0, 0, 0, 1]),
        ([100_003, 3, 22], Vec::new(), [1, 0, 0, 0, 3]),
        ([100_003, 3, 1], Vec::new(), [1, 0, 0, 0, 4]),
        ([100_003, 3, 1], vec![255; 8], [1, 0, 0, 0, 4]),
    ] {
        let reply = call(&server, numbers, &arguments).unwrap();
        assert_eq!(words(&reply), expected, "{numbers:?}");
    }
    let removed = call(&server, [100_003, 3, 12], &on_root(&[])).unwrap();
    assert_eq!(words(&removed)[5], 10004);
}

#[test]
fn groups_and_modes_are_kept_unless_changes_are_ignored() {
    for (attack, expected) in [
        (Attack::Nothing, [0o770, 2, 0, 2000]),
        (Attack::IgnoredChanges, [0o755, 2, 0, 0]),
    ] {
        let server = start(attack);
        let change = on_root(&[1, 0o770, 0, 1, 2000, 0, 0, 0, 0]);
        let changed = words(&call(&server, [100_003, 3, 2], &change).unwrap());
        assert_eq!(changed[9..13], expected, "{attack:?}");
    }
}

#[test]
fn listings_and_replies_are_hostile() {
    let (names, is_complete) = list(&start(Attack::EndlessListing), 1_000_000, 4096);
    assert_eq!(
        (&*names[0], names.len() > 50, is_complete),
        ("new-999997", true, false)
    );
    let long = Attack::LongNames {
        length: 300,
        count: 2,
    };
    assert_eq!(list(&start(long), 3, 4096).0[1].len(), 300);
    let null = |damage| {
        let server = start(Attack::Damaged(Procedure::Every, damage));
        call(&server, [100_003, 3, 0], &[])
    };
    assert_eq!(null(Damage::Truncated).unwrap().len(), 16);
    assert_eq!(null(Damage::Random).unwrap().len(), 20);
    assert!(null(Damage::Closed).is_err());
    assert_eq!(
        null(Damage::HugeRecord).unwrap_err().kind(),
        io::ErrorKind::InvalidData
    );
}
