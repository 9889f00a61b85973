use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use super::*;

const MIB: u64 = 1 << 20;

fn image(size: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(size).expect("it grows");
    file
}

fn contents(file: &File, size: u64) -> Contents {
    look(file, size).expect("it is read")
}

/// Each signature, at each place where it may be, on a device of an odd size.
#[test]
fn every_signature_of_the_table_is_found_at_each_of_its_places() {
    let size = 16 * MIB + 512;
    for known in KNOWN {
        for place in known.places {
            assert!(place.magic.len() <= table::LONGEST);
            for offset in place.at.offsets(size) {
                let image = image(size);
                image.as_file().write_all_at(place.magic, offset).unwrap();
                let found = contents(image.as_file(), size);
                let expected = Contents::Known(known);
                assert_eq!(found, expected, "{} at {offset}", known.name);
            }
        }
    }
}

#[test]
fn no_hint_of_the_table_suggests_to_make_a_file_system() {
    for known in KNOWN {
        for program in ["mkfs", "mke2fs"] {
            assert!(
                !known.hint.contains(program),
                "{}: {}",
                known.name,
                known.hint
            );
        }
    }
}

/// What the programs themselves write.
#[test]
fn what_other_programs_make_is_known_by_name() {
    for (program, arguments, name) in [
        ("mkswap", &[][..], "swap space"),
        ("mke2fs", &["-q", "-O", "journal_dev"], "external journal"),
    ] {
        let image = image(8 * MIB);
        let output = Command::new(program)
            .args(arguments)
            .arg(image.path())
            .output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(output.status.success(), "{program}: {output:?}");
        let Contents::Known(found) = contents(image.as_file(), 8 * MIB) else {
            panic!("{program}: nothing was found");
        };
        assert!(found.name.contains(name), "{program}: {}", found.name);
    }
}

#[test]
fn nothing_is_empty_but_what_was_read_to_be() {
    let size = 300 * MIB;
    let blank = image(size);
    assert_eq!(contents(blank.as_file(), size), Contents::Empty);
    for at in [
        0,
        2 * MIB - 1,
        8 * MIB + 1024,
        64 * MIB,
        128 * MIB + 7,
        size - 1,
    ] {
        let image = image(size);
        image.as_file().write_all_at(b"x", at).unwrap();
        assert_eq!(
            contents(image.as_file(), size),
            Contents::Data { at },
            "{at}"
        );
    }
}

/// What wipefs(8) or a stray dd leaves: the first superblock is gone, and a copy isn't.
#[test]
fn a_file_system_without_its_first_superblock_is_not_empty() {
    for (program, arguments, size, wiped) in [
        ("mkfs.ext4", &["-q"][..], 64 * MIB, MIB),
        ("mkfs.ext4", &["-q", "-b", "2048"], 2048 * MIB, 2 * MIB),
        ("mkfs.btrfs", &["-q"], 128 * MIB, 2 * MIB),
        ("mkfs.xfs", &["-q"], 2048 * MIB, 2 * MIB),
        ("mkfs.xfs", &["-q"], 411 * MIB, 2 * MIB),
        ("mkfs.xfs", &["-q", "-d", "agcount=8"], 1000 * MIB, 2 * MIB),
    ] {
        let image = image(size);
        let output = Command::new(program)
            .args(arguments)
            .arg(image.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
        let file = image.as_file();
        file.write_all_at(&vec![0; usize::try_from(wiped).unwrap()], 0)
            .unwrap();
        let found = contents(file, size);
        assert!(
            matches!(found, Contents::Data { .. }),
            "{program}: {found:?}"
        );
    }
}

#[test]
fn a_device_too_small_for_anything_is_read_to_its_end() {
    for size in [0, 512, 4095] {
        let image = image(size);
        assert_eq!(contents(image.as_file(), size), Contents::Empty, "{size}");
        if size > 0 {
            image.as_file().write_all_at(b"x", size - 1).unwrap();
            let at = size - 1;
            assert_eq!(contents(image.as_file(), size), Contents::Data { at });
        }
    }
}
