//! Native method of `NativeNames.java` that tells the hosts of splits, of many files in one call.
//! What is not known stays out: a file that cannot be opened, a node that is not there, stands
//! alone or does not answer. It fails for no file.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use jni::Env;
use jni::objects::{JClass, JIntArray, JLongArray, JObjectArray, JString};
use jni::sys::{jint, jlong};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use tidepool_client::Client;
use tidepool_proto::locality::{HOSTS_MAX, SPLITS_MAX, SplitHosts, SplitRange};
use tidepool_proto::{Error, ErrorKind};

use super::Place;
use crate::bridge::Failure;
use crate::client::ClientRef;

/// Numbers a file in `ranges`, as `Locality.java` has it too.
const RANGE_NUMBERS: usize = 3;
/// Numbers a split in `found`, as `Locality.java` has it too: hosts, and whether they hold it.
const FOUND_NUMBERS: usize = HOSTS_MAX + 1;
/// In `found`, where there is no host.
const NO_HOST: jint = -1;
/// Files that are opened and asked about at a time, so that a directory of many costs the round
/// trips of a few.
const THREADS_MAX: usize = 8;
/// Files for which one more thread is worth its start.
const FILES_A_THREAD: usize = 16;

/// What is asked of one file, and where in `found` its splits begin.
struct Question {
    lower: PathBuf,
    range: SplitRange,
    at: usize,
}

/// What came of all questions.
#[derive(Default)]
struct Answers {
    found: Vec<jint>,
    names: Vec<String>,
    numbers: HashMap<String, jint>,
}

impl Answers {
    fn number(&mut self, name: &str) -> jint {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = jint::try_from(self.names.len()).unwrap_or(NO_HOST);
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        number
    }

    /// Takes the hosts of splits from `at` on, in numbers of splits.
    fn take(&mut self, at: usize, hosts: &SplitHosts) {
        for (split, located) in (at..).zip(&hosts.splits) {
            let numbers: Vec<jint> =
                hosts.names_of(located).take(HOSTS_MAX).map(|name| self.number(name)).collect();
            let place = split * FOUND_NUMBERS;
            let Some(found) = self.found.get_mut(place..place + FOUND_NUMBERS) else { return };
            found[..numbers.len()].copy_from_slice(&numbers);
            found[HOSTS_MAX] = located.in_memory.into();
        }
    }
}

/// Asks about one file, a part of it at a time.
fn ask(client: &Client, question: &Question, answers: &Mutex<Answers>) {
    if !client.may_locate() {
        return;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(file) = rustix::fs::open(&question.lower, flags, Mode::empty()) else { return };
    let (mut range, mut at) = (question.range, question.at);
    while range.count > 0 {
        let Some(hosts) = client.locate(file.as_fd(), range) else { return };
        answers.lock().take(at, &hosts);
        let answered = (hosts.splits.len() as u32).min(range.count);
        if answered < range.count.min(SPLITS_MAX) {
            // The file ends.
            return;
        }
        range.count -= answered;
        range.first += u64::from(answered);
        at += answered as usize;
    }
}

/// Asks all questions: the first by itself, because a node that stands alone is asked no more, then
/// several at a time.
fn ask_all(client: &Client, questions: &[Question], answers: &Mutex<Answers>) {
    let Some((first, others)) = questions.split_first() else { return };
    ask(client, first, answers);
    if !client.may_locate() {
        return;
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(question) = others.get(next.fetch_add(1, Ordering::Relaxed)) {
            ask(client, question, answers);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..(others.len() / FILES_A_THREAD).min(THREADS_MAX) {
            // Where there is no thread, this one does it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// Where splits of files are. `ranges` has for each path the length of a split in bytes, the first
/// split and their number. `found` has room for all splits of all files, each [`FOUND_NUMBERS`]:
/// places in the array of names that this returns, or -1, and 1 where the hosts hold the split.
pub(crate) fn locate<'local>(
    env: &mut Env<'local>,
    _class: JClass<'_>,
    client: ClientRef,
    paths: JObjectArray<'_, JString<'_>>,
    ranges: JLongArray<'_>,
    found: JIntArray<'_>,
) -> Result<JObjectArray<'local, JString<'local>>, Failure> {
    let client = &client.client;
    let mut answers = Answers::default();
    if client.may_locate() {
        let questions = questions(env, client, &paths, &ranges)?;
        answers.found = vec![NO_HOST; found.len(env)?];
        let shared = Mutex::new(answers);
        ask_all(client, &questions, &shared);
        answers = shared.into_inner();
    }
    if !answers.names.is_empty() {
        found.set_region(env, 0, &answers.found)?;
    }
    let names = JObjectArray::<JString<'local>>::new(env, answers.names.len(), JString::null())?;
    for (index, name) in answers.names.iter().enumerate() {
        let name = env.new_string(name)?;
        names.set_element(env, index, &name)?;
        env.delete_local_ref(name);
    }
    Ok(names)
}

fn questions(
    env: &mut Env<'_>,
    client: &Client,
    paths: &JObjectArray<'_, JString<'_>>,
    ranges: &JLongArray<'_>,
) -> Result<Vec<Question>, Failure> {
    let count = paths.len(env)?;
    let mut numbers: Vec<jlong> = vec![0; count * RANGE_NUMBERS];
    ranges.get_region(env, 0, &mut numbers)?;
    let mut questions = Vec::with_capacity(count);
    let mut at = 0;
    for (index, range) in numbers.chunks_exact(RANGE_NUMBERS).enumerate() {
        let [Ok(split_bytes), Ok(first), Ok(splits)] =
            [range[0], range[1], range[2]].map(u64::try_from)
        else {
            let (operation, detail) = ("looking for the hosts of splits", "a number below zero");
            return Err(Error::new(ErrorKind::InvalidInput, operation, detail).into());
        };
        let splits = u32::try_from(splits).unwrap_or(u32::MAX);
        let path = paths.get_element(env, index)?;
        let place = Place::of(env, client, &path);
        env.delete_local_ref(path);
        // A name that nobody can have is known nowhere.
        if let Ok(Place { lower, .. }) = place {
            let range = SplitRange { split_bytes, first, count: splits };
            questions.push(Question { lower, range, at });
        }
        at += splits as usize;
    }
    Ok(questions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_proto::locality::LocatedSplit;

    #[test]
    fn hosts_of_several_files_share_their_names() {
        let hosts = |names: &[&str], splits: &[(&[u16], bool)]| SplitHosts {
            names: names.iter().map(|it| (*it).to_owned()).collect(),
            splits: splits
                .iter()
                .map(|(hosts, in_memory)| LocatedSplit {
                    hosts: hosts.to_vec(),
                    in_memory: *in_memory,
                })
                .collect(),
        };
        let mut answers = Answers { found: vec![NO_HOST; 4 * FOUND_NUMBERS], ..Answers::default() };
        answers.take(2, &hosts(&["a", "b"], &[(&[1], false), (&[0, 1], true)]));
        answers.take(0, &hosts(&["b", "c"], &[(&[1, 0, 7], true)]));
        assert_eq!(answers.names, ["b", "a", "c"]);
        let all = [[2, 0, -1, 1], [-1; 4], [0, -1, -1, 0], [1, 0, -1, 1]];
        assert_eq!(answers.found, all.concat());
        // More than there is room for is left out.
        answers.take(3, &hosts(&["a"], &[(&[0], true), (&[0], true)]));
        assert_eq!(answers.found[3 * FOUND_NUMBERS..], [1, 0, -1, 1][..]);
    }
}
