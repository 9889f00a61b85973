use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use super::*;

const MIB: u64 = 1 << 20;

fn image(size: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(size).expect("the file grows");
    file
}

fn contents(file: &File, size: u64) -> Contents {
    identify(file, size).expect("the contents are identified")
}

#[test]
fn every_signature_is_found_at_each_of_its_offsets() {
    // Not a multiple of the units by which some offsets are aligned.
    let size = 16 * MIB + 512;
    for format in KNOWN_FORMATS {
        for location in format.signatures {
            assert!(location.magic.len() <= table::LONGEST_MAGIC);
            for offset in location.offsets.on_device(size) {
                let image = image(size);
                image
                    .as_file()
                    .write_all_at(location.magic, offset)
                    .unwrap();
                let found = contents(image.as_file(), size);
                let expected = Contents::Known(format);
                assert_eq!(found, expected, "{} at {offset}", format.name);
            }
        }
    }
}

#[test]
fn no_hint_suggests_formatting_the_device() {
    for format in KNOWN_FORMATS {
        for program in ["mkfs", "mke2fs"] {
            assert!(
                !format.hint.contains(program),
                "{}: {}",
                format.name,
                format.hint
            );
        }
    }
}

#[test]
fn formats_written_by_their_own_programs_are_identified() {
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
fn a_device_is_empty_only_if_all_sampled_bytes_are_zero() {
    let size = 300 * MIB;
    let blank = image(size);
    assert_eq!(contents(blank.as_file(), size), Contents::Empty);
    for offset in [
        0,
        2 * MIB - 1,
        8 * MIB + 1024,
        64 * MIB,
        128 * MIB + 7,
        size - 1,
    ] {
        let image = image(size);
        image.as_file().write_all_at(b"x", offset).unwrap();
        assert_eq!(
            contents(image.as_file(), size),
            Contents::Data { offset },
            "{offset}"
        );
    }
}

/// wipefs(8) or a stray dd removes the first superblock and leaves its copies.
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
fn a_tiny_device_is_read_to_its_end() {
    for size in [0, 512, 4095] {
        let image = image(size);
        assert_eq!(contents(image.as_file(), size), Contents::Empty, "{size}");
        if size > 0 {
            image.as_file().write_all_at(b"x", size - 1).unwrap();
            let offset = size - 1;
            assert_eq!(contents(image.as_file(), size), Contents::Data { offset });
        }
    }
}
