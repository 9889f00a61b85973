use crust_blockfs::options;

use super::*;

fn normalized(list: &[&str]) -> Result<String, ShareOptionError> {
    let options = normalize(&options::parse(list).unwrap(), "nfs")?;
    let texts = options.fs_options.iter().map(FsOption::to_string);
    Ok(texts.collect::<Vec<_>>().join(","))
}

#[track_caller]
fn assert_normalized(lists: &[&[&str]], expected: &str) {
    for list in lists {
        assert_eq!(normalized(list).as_deref(), Ok(expected), "{list:?}");
    }
}

#[test]
fn lists_of_the_same_meaning_become_equal() {
    for (lists, expected) in [
        (
            &[
                &["vers=4.2"][..],
                &["nfsvers=4.2"],
                &["v4.2"],
                &["minorversion=2"],
                &["minorversion=2,vers=4"],
                &["v4,minorversion=2"],
                &["vers=4.2", "minorversion=2"],
                &["v3", "vers=4.2"],
            ][..],
            "vers=4.2",
        ),
        (&[&["tcp"], &["proto=tcp"], &["udp,proto=tcp"]], "proto=tcp"),
        (
            &[
                &[],
                &["hard"],
                &["soft,hard"],
                &["ac,cto,lock"],
                &["sec=sys"],
                &["xprtsec=none"],
                &["rdirplus"],
                &["nordirplus", "rdirplus"],
                &["retry=2,fg,intr"],
            ],
            "",
        ),
        (
            &[&["lookupcache=pos"], &["lookupcache=positive"]],
            "lookupcache=pos",
        ),
        (
            &[
                &["nordirplus"],
                &["rdirplus=none"],
                &["rdirplus=force,rdirplus=none"],
            ],
            "nordirplus",
        ),
        (
            &[&["rdirplus=force"], &["nordirplus,rdirplus=force"]],
            "rdirplus=force",
        ),
        (&[&["soft"], &["hard,soft"]], "soft"),
        (
            &[
                &["actimeo=7"],
                &["acregmin=7,acregmax=007,acdirmin=7,acdirmax=7"],
            ],
            "acdirmax=7,acdirmin=7,acregmax=7,acregmin=7",
        ),
        (
            &[&["actimeo=7,acregmin=3"]],
            "acdirmax=7,acdirmin=7,acregmax=7,acregmin=3",
        ),
        (
            &[&["nolock,timeo=50"], &["timeo=50,lock,nolock"]],
            "nolock,timeo=50",
        ),
        (&[&["port=0"], &["port=000"]], "port=0"),
        (
            &[&["nconnect=16,max_connect=016"]],
            "max_connect=16,nconnect=16",
        ),
        (
            &[&["timeo=2147483647,retrans=0"]],
            "retrans=0,timeo=2147483647",
        ),
        (&[&["proto=udp,vers=3"], &["v3,udp"]], "proto=udp,vers=3"),
        (
            &[&["sync,context=u:r:t"], &["context=u:r:t", "sync"]],
            "context=u:r:t,sync",
        ),
    ] {
        assert_normalized(lists, expected);
    }
}

#[test]
fn kinds_of_local_locks_add_up_unless_lock_or_nolock_decides() {
    for (lists, expected) in [
        (
            &[
                &["local_lock=none"][..],
                &["local_lock=all,local_lock=none"],
                &["local_lock=all", "lock"],
                &["lock,local_lock=all"],
                &["nolock,lock,local_lock=posix"],
            ][..],
            "",
        ),
        (
            &[
                &["nolock"],
                &["nolock,local_lock=posix"],
                &["local_lock=flock,nolock"],
                &["nolock,local_lock=none"],
                &["lock,nolock"],
            ],
            "nolock",
        ),
        (
            &[
                &["local_lock=all"],
                &["local_lock=flock,local_lock=posix"],
                &["local_lock=posix,local_lock=flock"],
                &["local_lock=all,local_lock=posix"],
                &["local_lock=none,local_lock=all"],
            ],
            "local_lock=all",
        ),
        (
            &[
                &["local_lock=posix"],
                &["local_lock=posix,local_lock=posix"],
                &["local_lock=all,local_lock=none,local_lock=posix"],
            ],
            "local_lock=posix",
        ),
    ] {
        assert_normalized(lists, expected);
    }
}

#[test]
fn attributes_and_read_only_are_kept() {
    let given = options::parse(&["ro,nosuid,nodev,hard"]).unwrap();
    let options = normalize(&given, "nfs4").unwrap();
    assert_eq!(
        (options.attributes, options.read_only),
        (given.attributes, true)
    );
    assert_eq!(options.fs_options, []);
}

#[test]
fn an_option_that_a_share_cannot_have_is_named() {
    for (option, words) in [
        ("discard", "is not an NFS mount option"),
        ("nfsver=4", "nfsver: is not an NFS mount option"),
        ("addr=10.0.0.1", "names a host"),
        ("clientaddr=10.0.0.1", "names a host"),
        ("mounthost=other", "names a host"),
        ("bg", "in the background"),
        ("sloppy", "unknown options"),
        ("rdma", "over TCP or UDP"),
        ("proto=rdma", "over TCP or UDP"),
        ("proto=rdma6", "over TCP or UDP"),
        ("sec=krb5", "sec=krb5: isn't supported"),
        ("sec=krb5p:sys", "with sec=sys and without TLS"),
        ("sec", "expected sys"),
        ("xprtsec=tls", "xprtsec=tls: isn't supported"),
        ("xprtsec=mtls", "without TLS"),
        ("xprtsec=other", "expected none"),
        ("vers=2", "expected one of 3, 4, 4.0, 4.1, 4.2"),
        ("minorversion=3", "expected one of 0, 1, 2"),
        ("vers", "expected one of 3"),
        ("timeo=fast", "a decimal number"),
        ("timeo=-1", "a decimal number"),
        ("timeo", "a decimal number"),
        ("timeo=", "a decimal number"),
        ("timeo=+1", "a decimal number"),
        ("timeo=0", "a decimal number from 1 to 2147483647"),
        (
            "retrans=2147483648",
            "a decimal number from 0 to 2147483647",
        ),
        ("port=70000", "a decimal number from 0 to 65535"),
        ("mountport=65536", "a decimal number from 0 to 65535"),
        ("nconnect=0", "a decimal number from 1 to 16"),
        ("nconnect=99", "a decimal number from 1 to 16"),
        ("max_connect=17", "a decimal number from 1 to 16"),
        ("rsize=4294967296", "a decimal number from 0 to 4294967295"),
        (
            "actimeo=4294967296",
            "a decimal number from 0 to 4294967295",
        ),
        (
            "proto=udp,vers=4.1",
            "proto=udp: isn't possible with version 4",
        ),
        ("proto=udp6,minorversion=0", "proto=udp6: isn't possible"),
        ("rdirplus=all", "expected one of none, force"),
        ("soft=yes", "soft=yes: expected no value"),
        ("v3=1", "no value"),
        ("tcp=1", "no value"),
        ("mountproto=", "expected one of tcp, tcp6"),
        ("lookupcache=maybe", "expected one of all, none"),
        ("fsc=tag", "no value"),
    ] {
        let error = normalized(&[option]).unwrap_err().to_string();
        assert!(error.contains(words), "{option}: {error}");
        let name = option.split('=').next().unwrap();
        assert!(error.contains(&format!("mount option {name}")), "{error}");
    }
    for (option, words) in [
        ("vers=3", "expected one of 4, 4.0"),
        ("udp", "proto=udp: isn't possible with version 4"),
    ] {
        let options = options::parse(&[option]).unwrap();
        assert!(normalize(&options, "nfs").is_ok(), "{option}");
        let error = normalize(&options, "nfs4").unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn versions_that_contradict_each_other_are_named() {
    for (list, versions) in [
        ("vers=3,minorversion=1", "vers=3 and minorversion=1"),
        ("minorversion=1,v3", "vers=3 and minorversion=1"),
        ("v4.1,minorversion=2", "vers=4.1 and minorversion=2"),
    ] {
        let error = normalized(&[list]).unwrap_err().to_string();
        assert!(error.contains(versions), "{error}");
    }
}

#[test]
fn the_contact_follows_from_type_and_options() {
    use AllowedVersions::{Any, AnyV4, Only};
    for (fstype, list, versions, transport, port) in [
        ("nfs", "", Any, None, None),
        ("nfs4", "", AnyV4, None, None),
        ("nfs", "vers=4", AnyV4, None, None),
        ("nfs", "vers=3,port=0", Only(NfsVersion::V3), None, Some(0)),
        (
            "nfs4",
            "v4.1,port=20490",
            Only(NfsVersion::V4_1),
            None,
            Some(20490),
        ),
        (
            "nfs",
            "udp",
            Only(NfsVersion::V3),
            Some(Transport::Udp),
            None,
        ),
        ("nfs", "proto=tcp6", Any, Some(Transport::Tcp6), None),
    ] {
        let options = normalize(&options::parse(&[list]).unwrap(), fstype).unwrap();
        let contact = Contact::new(&options, fstype);
        let found = (contact.versions, contact.transport, contact.port);
        assert_eq!(found, (versions, transport, port), "{fstype} {list}");
        assert!(contact.has_remote_locks, "{fstype} {list}");
    }
    for list in ["nolock", "local_lock=all"] {
        let options = normalize(&options::parse(&[list]).unwrap(), "nfs").unwrap();
        assert!(!Contact::new(&options, "nfs").has_remote_locks, "{list}");
    }
}
