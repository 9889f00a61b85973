use super::*;

fn shell(
    script: &str,
    lock: Option<ImageLock>,
    limit: Duration,
) -> Result<ProgramOutput, RunError> {
    let arguments = ["-c", script].map(OsStr::new);
    run_at(Path::new("/bin/sh"), &arguments, lock, limit)
}

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn the_output_and_the_exit_status_are_returned() {
    let ran = shell("echo one; echo two >&2; exit 4", None, TIMEOUT).unwrap();
    assert_eq!(ran.status.code(), Some(4));
    assert_eq!(
        (&ran.stdout[..], &ran.stderr[..]),
        (&b"one\n"[..], &b"two\n"[..])
    );
    assert_eq!(ran.summary(), "one; two");
}

#[test]
fn a_program_has_a_clean_environment() {
    let ran = shell(
        "env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=; pwd",
        None,
        TIMEOUT,
    )
    .unwrap();
    let output = String::from_utf8(ran.stdout).unwrap();
    let mut lines: Vec<_> = output.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["/", "LC_ALL=C", "PATH=/usr/sbin:/sbin:/usr/bin:/bin"]
    );
}

#[test]
fn the_beginning_of_long_output_is_kept() {
    let ran = shell(
        "head -c 1000000 /dev/zero | tr '\\0' x; echo end >&2",
        None,
        TIMEOUT,
    )
    .unwrap();
    assert_eq!(ran.stdout, vec![b'x'; MAX_KEPT_BYTES]);
    assert_eq!(ran.stderr, b"end\n");
    let output = ran.summary();
    assert!(
        output.len() < 2 * MAX_SUMMARY_CHARS && output.ends_with("end"),
        "{output}"
    );
}

#[test]
fn a_program_that_hangs_is_killed_with_its_children() {
    let image = tempfile::NamedTempFile::new().unwrap();
    for script in [
        "exec 3<&0; sleep 1000 & sleep 1000",
        "yes",
        "exec >/dev/null 2>&1 3<&0; sleep 1000 & wait",
    ] {
        let lock = ImageLock::acquire(image.path()).unwrap();
        let error = shell(script, Some(lock), Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, RunError::TimedOut { .. }), "{error}");
        // A process that is left would hold the lock.
        ImageLock::acquire(image.path()).unwrap_or_else(|error| panic!("{script}: {error}"));
    }
}

#[test]
fn a_program_holds_the_lock_after_its_parent_has_ended() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let lock = ImageLock::acquire(image.path()).unwrap();
    // A child in another session outlives the program, as the program would outlive the driver.
    let script = "exec 3<&0; echo $(setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' <&3 &)";
    let ran = shell(script, Some(lock), TIMEOUT).unwrap();
    let left = String::from_utf8(ran.stdout).unwrap();
    let left = Pid::from_raw(left.trim().parse().unwrap()).unwrap();
    let is_locked = || {
        let file = File::open(image.path()).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    };
    assert!(is_locked());
    rustix::process::kill_process(left, Signal::KILL).unwrap();
    let free = Deadline::after(TIMEOUT).poll(|| Ok::<_, ()>((!is_locked()).then_some(())));
    assert_eq!(free, Ok(Some(())));
}

#[test]
fn a_missing_program_is_an_error() {
    let error = run("mkfs.none", &[], None, TIMEOUT).unwrap_err();
    assert!(
        error.to_string().starts_with("mkfs.none isn't in "),
        "{error}"
    );
    let error = run_at(Path::new("/dev/null"), &[], None, TIMEOUT).unwrap_err();
    assert!(matches!(error, RunError::Call { .. }), "{error}");
}
