//! Probes paths and loop devices that may hang. A separate process makes the probes, and this one waits for it with a
//! time limit. Whatever has answered that process will answer this one, too.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};

use crate::Deadline;
use crate::errno::Name;
use crate::sys::probe_process::{
    MAX_LOOP_PROBES, Probe, ProbeResult, SharedResults, has_ended, start_probe_process,
};

/// The error of probes whose results are unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The probing process couldn't be started.
    #[error("{call}: {}; hint: check the limits on processes, open files and memory", Name(*errno))]
    Call {
        /// The name of the system call.
        call: &'static str,
        /// The error of the call.
        errno: Errno,
    },
    /// The probing process was killed.
    #[error("the probing process was killed; hint: check whether the node has run out of memory")]
    Killed,
    /// Not even the control probe, which never hangs, has finished in time.
    #[error("no probe has finished in time; hint: check whether the node is overloaded")]
    Slow,
    /// The number of probes that are stuck. Others may not have been made at all.
    #[error(
        "{0} device probes are stuck; hint: check the disks and file servers of this node; `ps` shows the processes of the \
         probes, in state D"
    )]
    TooMany(usize),
}

/// The largest number of processes that probe at the same time.
const MAX_PROCESSES: usize = 256;

/// The largest number of processes, including those of earlier calls that are stuck.
const MAX_STUCK_PROCESSES: usize = 2 * MAX_PROCESSES;

/// Processes that are stuck, until they have ended.
static STUCK: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Returns a probe of a path by stat(2). A path with a NUL byte is treated as one that leads to nothing.
#[must_use]
pub fn path_probe(path: &Path) -> Probe {
    Probe::Path(c_string(path))
}

/// Returns a probe of a loop device, by the path of its device node.
pub(crate) fn loop_probe(node: &Path) -> Probe {
    Probe::LoopDevice(c_string(node))
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Makes probes and returns their results in the same order; `None` stands for a probe that hangs. If some hang, blocks
/// for as long as `limit`, usually once or twice.
pub fn run_probes(
    probes: &[Probe],
    limit: Duration,
) -> Result<Vec<Option<ProbeResult>>, ProbeError> {
    let control = Probe::Path(c"/".to_owned());
    let probe = |index: u32| probes.get(index as usize).unwrap_or(&control);
    run_rounds(probes.len(), |batches, results| {
        run_batches(batches, probe, limit, results)
    })
}

/// The indexes of probes that one process makes one after the other.
type ProbeBatch = Vec<u32>;

/// Runs rounds of batches until it is known which of `count` probes hang.
///
/// In the first round one process, or few, make all probes, because usually none hangs. In each further round many
/// processes make those probes that haven't finished, until each probe has a process of its own. The index `count`
/// stands for a control probe, which never hangs. If the control probe doesn't finish either, the node is too slow to
/// tell which probes hang.
fn run_rounds<R: Clone>(
    count: usize,
    mut run_batches: impl FnMut(&[ProbeBatch], &mut [Option<R>]) -> Result<(), ProbeError>,
) -> Result<Vec<Option<R>>, ProbeError> {
    let control = u32::try_from(count).unwrap_or(u32::MAX);
    let mut unfinished: ProbeBatch = (0..control).collect();
    let mut results = vec![None; count + 1];
    if !unfinished.is_empty() {
        let batches: Vec<ProbeBatch> = unfinished
            .chunks(MAX_LOOP_PROBES)
            .map(<[u32]>::to_vec)
            .collect();
        run_batches(&batches, &mut results)?;
    }
    let mut was_one_per_process = false;
    loop {
        let before = unfinished.len();
        unfinished.retain(|index| results[*index as usize].is_none());
        if unfinished.is_empty() || was_one_per_process {
            break;
        }
        if results[count].is_some() && unfinished.len() == before {
            return Err(ProbeError::TooMany(before));
        }
        let size = unfinished.len().div_ceil(MAX_PROCESSES);
        was_one_per_process = size == 1;
        let mut batches: Vec<ProbeBatch> = unfinished.chunks(size).map(<[u32]>::to_vec).collect();
        batches.push(vec![control]);
        results[count] = None;
        run_batches(&batches, &mut results)?;
        if results[count].is_none() {
            return Err(ProbeError::Slow);
        }
    }
    results.truncate(count);
    Ok(results)
}

/// Has one process make the probes of each batch. Takes the results once all processes have ended, or when the time
/// limit has passed.
fn run_batches<'p>(
    batches: &[ProbeBatch],
    probe: impl Fn(u32) -> &'p Probe,
    limit: Duration,
    results: &mut [Option<ProbeResult>],
) -> Result<(), ProbeError> {
    let failed = |call| move |errno| ProbeError::Call { call, errno };
    let shared = SharedResults::new(results.len()).map_err(failed("mmap"))?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe2"))?;
    let mut running = ProbeProcesses::default();
    for batch in batches {
        running.check_limit()?;
        let batch: Vec<(u32, &Probe)> = batch.iter().map(|index| (*index, probe(*index))).collect();
        let process = start_probe_process(&batch, &shared, &writer).map_err(failed("clone"))?;
        running.processes.push(process);
    }
    drop(writer);
    running.have_ended = wait_for_end(&reader, &Deadline::after(limit)).map_err(failed("poll"))?;
    let mut are_complete = true;
    for index in batches.iter().flatten() {
        let result = shared.get(*index);
        are_complete &= result.is_some();
        if let Some(known) = results.get_mut(*index as usize) {
            *known = result.or(*known);
        }
    }
    if running.have_ended && !are_complete {
        return Err(ProbeError::Killed);
    }
    Ok(())
}

/// Waits until no process has the writing end of the pipe open any more. Returns false if the deadline passes first.
fn wait_for_end(reader: &OwnedFd, deadline: &Deadline) -> Result<bool, Errno> {
    loop {
        let remaining = deadline.remaining().map(Timespec::try_from);
        let remaining = remaining.and_then(Result::ok);
        let mut events = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::empty())];
        match poll(&mut events, remaining.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// The processes of one call. They are killed when this is dropped.
#[derive(Default)]
struct ProbeProcesses {
    processes: Vec<Pid>,
    have_ended: bool,
}

impl ProbeProcesses {
    /// Fails if no further process may be started.
    fn check_limit(&self) -> Result<(), ProbeError> {
        let mut stuck = STUCK.lock().unwrap_or_else(PoisonError::into_inner);
        stuck.retain(|process| !has_ended(*process, false));
        let all = stuck.len() + self.processes.len();
        if all < MAX_STUCK_PROCESSES {
            return Ok(());
        }
        Err(ProbeError::TooMany(all))
    }
}

impl Drop for ProbeProcesses {
    fn drop(&mut self) {
        let have_ended = self.have_ended;
        for process in self.processes.iter().filter(|_| !have_ended) {
            // The process hasn't been waited for, so the pid can't be another process's yet.
            let _ = kill_process(*process, Signal::KILL);
        }
        let mut stuck = STUCK.lock().unwrap_or_else(PoisonError::into_inner);
        let processes = self.processes.drain(..);
        stuck.extend(processes.filter(|process| !has_ended(*process, have_ended)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_fails_has_finished_as_well() {
        let paths = ["/", "/no/such", "/proc/self/exe/x"].map(|path| path_probe(path.as_ref()));
        let loops = ["/dev/null", "/no/such"].map(|path| loop_probe(path.as_ref()));
        let all: Vec<Probe> = paths
            .into_iter()
            .chain(loops)
            .cycle()
            .take(20_000)
            .collect();
        let limit = Duration::from_secs(60);
        let results = |probes: &[Probe]| run_probes(probes, limit).unwrap();
        let finished = Some(ProbeResult { loop_status: None });
        assert_eq!(results(&all), vec![finished; 20_000]);
        assert_eq!(results(&[]), []);
    }

    /// Runs rounds in which each process stops at the first probe that hangs. Returns the results, and the number of
    /// processes in each round.
    fn run(
        count: usize,
        hangs: impl Fn(u32) -> bool,
    ) -> (Result<Vec<Option<()>>, ProbeError>, Vec<usize>) {
        let mut processes = Vec::new();
        let results = run_rounds(count, |batches, results| {
            processes.push(batches.len());
            for batch in batches {
                for index in batch.iter().take_while(|index| !hangs(**index)) {
                    results[*index as usize] = Some(());
                }
            }
            Ok(())
        });
        (results, processes)
    }

    #[test]
    fn a_probe_that_hangs_does_not_keep_others_from_finishing() {
        for (count, hanging, expected) in [
            (0, &[][..], &[][..]),
            (5, &[], &[1]),
            (1, &[0], &[1, 2]),
            (5, &[0, 3], &[1, 6]),
            (5, &[4], &[1, 2]),
            // The first of two batches hangs at once. 512 probes are left, and each process makes two of them. The two
            // batches that hang leave four probes, which get a process each.
            (600, &[0, 2], &[2, 257, 5]),
        ] {
            let (results, processes) = run(count, |index| hanging.contains(&index));
            let expected_results = (0..)
                .take(count)
                .map(|index| (!hanging.contains(&index)).then_some(()));
            assert_eq!(
                results,
                Ok(expected_results.collect()),
                "{count} {hanging:?}"
            );
            assert_eq!(processes, expected, "{count} {hanging:?}");
        }
        let (results, _) = run(1000, |index| index < 1000);
        assert_eq!(results, Err(ProbeError::TooMany(1000)));
    }

    #[test]
    fn nothing_is_known_if_even_the_control_probe_hangs() {
        let results = run_rounds::<()>(3, |_, _| Ok(()));
        assert_eq!(results, Err(ProbeError::Slow));
    }
}
