//! Probes of paths and devices that may hang: a process makes them, and is waited for with a limit. What has answered
//! that process will answer this one.

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
use crate::sys::probe_process::{Answer, Board, MOST_LOOPS, Question, ended, start_asking};

/// The error of probes whose results are unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The probing process couldn't be started.
    #[error("{call}: {}; hint: is there a limit on processes, open files or memory?", Name(*errno))]
    Call {
        /// The call.
        call: &'static str,
        /// The error number.
        errno: Errno,
    },
    /// The probing process was killed.
    #[error("the process that asks was killed; hint: is there no memory left?")]
    Lost,
    /// Even the probe that always answers got no answer.
    #[error("there is no answer to anything in time; hint: is the node overloaded?")]
    Slow,
    /// So many probes are stuck that others may be without an answer for that reason.
    #[error("{0} device probes are stuck; hint: `ps` shows their processes, in state D")]
    TooMany(usize),
}

/// The number of processes that probe at once.
const AT_ONCE: usize = 256;

/// The number of processes that may be stuck, with those of earlier calls.
const MOST: usize = 2 * AT_ONCE;

/// Stuck processes, until they have ended.
static LEFT: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Returns a probe of a path by stat(2). A path with a NUL byte leads to nothing.
#[must_use]
pub fn about_path(path: &Path) -> Question {
    Question::Path(c_string(path))
}

/// Returns a probe of a loop device, by its node.
pub(crate) fn about_loop(node: &Path) -> Question {
    Question::Loop(c_string(node))
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Makes probes, and returns their answers; `None` stands for one that hangs. Blocks as long as `limit` for those that
/// hang, usually once or twice.
pub fn ask_all(questions: &[Question], limit: Duration) -> Result<Vec<Option<Answer>>, ProbeError> {
    let control = Question::Path(c"/".to_owned());
    let question = |number: u32| questions.get(number as usize).unwrap_or(&control);
    by_rounds(questions.len(), |lists, answers| {
        ask(lists, question, limit, answers)
    })
}

/// Numbers of questions, which one process asks in their order.
type List = Vec<u32>;

/// Has questions asked until it is known which of them hang: by one process, or few, all of them, since
/// mostly none does; then by many those that it didn't come to, until each has one of its own. The number after
/// the last stands for something that always answers: where that doesn't, the others say nothing
/// either.
fn by_rounds<A: Clone>(
    count: usize,
    mut ask: impl FnMut(&[List], &mut [Option<A>]) -> Result<(), ProbeError>,
) -> Result<Vec<Option<A>>, ProbeError> {
    let control = u32::try_from(count).unwrap_or(u32::MAX);
    let mut silent: List = (0..control).collect();
    let mut answers = vec![None; count + 1];
    if !silent.is_empty() {
        let lists: Vec<List> = silent.chunks(MOST_LOOPS).map(<[u32]>::to_vec).collect();
        ask(&lists, &mut answers)?;
    }
    let mut has_own = false;
    loop {
        let before = silent.len();
        silent.retain(|number| answers[*number as usize].is_none());
        if silent.is_empty() || has_own {
            break;
        }
        if answers[count].is_some() && silent.len() == before {
            return Err(ProbeError::TooMany(before));
        }
        let size = silent.len().div_ceil(AT_ONCE);
        has_own = size == 1;
        let mut lists: Vec<List> = silent.chunks(size).map(<[u32]>::to_vec).collect();
        lists.push(vec![control]);
        answers[count] = None;
        ask(&lists, &mut answers)?;
        if answers[count].is_none() {
            return Err(ProbeError::Slow);
        }
    }
    answers.truncate(count);
    Ok(answers)
}

/// Lets a process ask each of the lists, and takes their answers once all have ended, or the time is over.
fn ask<'q>(
    lists: &[List],
    question: impl Fn(u32) -> &'q Question,
    limit: Duration,
    answers: &mut [Option<Answer>],
) -> Result<(), ProbeError> {
    let call = |call| move |errno| ProbeError::Call { call, errno };
    let board = Board::new(answers.len()).map_err(call("mmap"))?;
    let (ends, end) = pipe_with(PipeFlags::CLOEXEC).map_err(call("pipe2"))?;
    let mut asking = Asking::default();
    for list in lists {
        asking.make_room()?;
        let list: Vec<(u32, &Question)> = list.iter().map(|it| (*it, question(*it))).collect();
        let process = start_asking(&list, &board, &end).map_err(call("clone"))?;
        asking.processes.push(process);
    }
    drop(end);
    asking.are_done = have_ended(&ends, &Deadline::after(limit)).map_err(call("poll"))?;
    let mut are_all_there = true;
    for number in lists.iter().flatten() {
        let answer = board.answer(*number);
        are_all_there &= answer.is_some();
        if let Some(known) = answers.get_mut(*number as usize) {
            *known = answer.or(*known);
        }
    }
    if asking.are_done && !are_all_there {
        return Err(ProbeError::Lost);
    }
    Ok(())
}

/// Whether nobody has the other end of the pipe open any more, within the time.
fn have_ended(ends: &OwnedFd, deadline: &Deadline) -> Result<bool, Errno> {
    loop {
        let left = deadline.remaining().map(Timespec::try_from);
        let left = left.and_then(Result::ok);
        let mut events = [PollFd::from_borrowed_fd(ends.as_fd(), PollFlags::empty())];
        match poll(&mut events, left.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// The processes that ask: they are ended with this.
#[derive(Default)]
struct Asking {
    processes: Vec<Pid>,
    /// They have ended.
    are_done: bool,
}

impl Asking {
    /// Another one may be started.
    fn make_room(&self) -> Result<(), ProbeError> {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|process| !ended(*process, false));
        let all = left.len() + self.processes.len();
        if all < MOST {
            return Ok(());
        }
        Err(ProbeError::TooMany(all))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let are_done = self.are_done;
        for process in self.processes.iter().filter(|_| !are_done) {
            // It isn't waited for yet, so that the number is still its own.
            let _ = kill_process(*process, Signal::KILL);
        }
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        let hanging = self.processes.drain(..);
        left.extend(hanging.filter(|process| !ended(*process, are_done)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_is_told_whatever_the_answer_is() {
        let questions = ["/", "/no/such", "/proc/self/exe/x"].map(|path| about_path(path.as_ref()));
        let loops = ["/dev/null", "/no/such"].map(|path| about_loop(path.as_ref()));
        let all: Vec<Question> = questions
            .into_iter()
            .chain(loops)
            .cycle()
            .take(20_000)
            .collect();
        let limit = Duration::from_secs(60);
        let answers = |questions: &[Question]| ask_all(questions, limit).unwrap();
        let none = Some(Answer { shown: None });
        assert_eq!(answers(&all), vec![none; 20_000]);
        assert_eq!(answers(&[]), []);
    }
    /// With some that hang, and some that a process hasn't the time for: which are answered, and how many
    /// processes each round takes.
    fn rounds(
        count: usize,
        hangs: impl Fn(u32) -> bool,
    ) -> (Result<Vec<Option<()>>, ProbeError>, Vec<usize>) {
        let mut rounds = Vec::new();
        let answers = by_rounds(count, |lists, answers| {
            rounds.push(lists.len());
            for list in lists {
                for number in list.iter().take_while(|number| !hangs(**number)) {
                    answers[*number as usize] = Some(());
                }
            }
            Ok(())
        });
        (answers, rounds)
    }

    #[test]
    fn who_does_not_answer_keeps_nobody_from_it() {
        for (count, hanging, expected) in [
            (0, &[][..], &[][..]),
            (5, &[], &[1]),
            (1, &[0], &[1, 2]),
            (5, &[0, 3], &[1, 6]),
            (5, &[4], &[1, 2]),
            // Lists of two, of which two aren't asked to their end; and not all of the first one of 512.
            (600, &[0, 2], &[2, 257, 5]),
        ] {
            let (answers, rounds) = rounds(count, |number| hanging.contains(&number));
            let expected_answers = (0..)
                .take(count)
                .map(|it| (!hanging.contains(&it)).then_some(()));
            assert_eq!(
                answers,
                Ok(expected_answers.collect()),
                "{count} {hanging:?}"
            );
            assert_eq!(rounds, expected, "{count} {hanging:?}");
        }
        let (answers, _) = rounds(1000, |number| number < 1000);
        assert_eq!(answers, Err(ProbeError::TooMany(1000)));
    }

    #[test]
    fn where_nothing_answers_nothing_is_known() {
        let nobody = by_rounds::<()>(3, |_, _| Ok(()));
        assert_eq!(nobody, Err(ProbeError::Slow));
    }
}
