//! [`Users`]: names of users by their numbers, from wherever this machine has its users. Their
//! directory may be slow, hang, or say too much: an answer has a limit in time and length, and
//! where none comes the number stands for the name.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::shared::say;

/// Users whose names are remembered.
const NAMES_MAX: usize = 1000;
/// Longest time for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Time until a directory that did not answer is asked again.
const PAUSE: Duration = Duration::from_secs(60);
/// No line of a user is longer, and so much waits in a pipe.
const ANSWER_BYTES_MAX: u64 = 16 << 10;
const POLL: Duration = Duration::from_millis(10);

/// Names that were found.
pub struct Users<'a> {
    program: &'a str,
    ending: &'a AtomicBool,
    names: HashMap<u32, String>,
    /// Since when it does not answer.
    silent: Option<Instant>,
    /// Longest time for an answer.
    limit: Duration,
    /// Programs that were killed and have not ended yet.
    left: Vec<Child>,
}

impl<'a> Users<'a> {
    /// Asks `program` as `getent` is asked; gives up at once when `ending` is set.
    pub fn new(program: &'a str, ending: &'a AtomicBool) -> Users<'a> {
        let (names, left) = (HashMap::new(), Vec::new());
        Users { program, ending, names, silent: None, limit: ANSWER_TIME, left }
    }

    /// The name of a user; the number where there is none, or no answer.
    pub fn name(&mut self, user_id: u32) -> String {
        if let Some(name) = self.names.get(&user_id) {
            return name.clone();
        }
        let number = user_id.to_string();
        if self.silent.is_some_and(|since| since.elapsed() < PAUSE) {
            return number;
        }
        let Some(name) = self.ask(&number) else {
            if self.silent.replace(Instant::now()).is_none() {
                say("the directory of users does not answer: samples have their numbers for names");
            }
            return number;
        };
        if self.silent.take().is_some() {
            say("the directory of users answers again");
        }
        let name = if name.is_empty() { number } else { name };
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(user_id, name.clone());
        name
    }

    /// Nothing where no answer came; empty where there is no such user.
    fn ask(&mut self, number: &str) -> Option<String> {
        let mut command = Command::new(self.program);
        command.args(["passwd", number]).stdin(Stdio::null()).stderr(Stdio::null());
        // A machine without such a program has users without names.
        let mut child = match command.stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) => return (error.kind() == ErrorKind::NotFound).then(String::new),
        };
        self.left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if self.wait(&mut child).is_none() {
            _ = child.kill();
            // One that waits for a disk ends when that answers.
            self.left.push(child);
            return None;
        }
        let mut line = Vec::new();
        // It has ended: what it wrote waits in the pipe.
        let output = child.stdout.take()?;
        _ = output.take(ANSWER_BYTES_MAX).read_to_end(&mut line);
        let line = String::from_utf8_lossy(&line);
        Some(line.split(':').next().unwrap_or_default().trim().to_owned())
    }

    fn wait(&self, child: &mut Child) -> Option<ExitStatus> {
        let begun = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if begun.elapsed() < self.limit => {}
                _ => return None,
            }
            if self.ending.load(Ordering::Relaxed) {
                return None;
            }
            std::thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_their_names_or_their_numbers() {
        let ending = AtomicBool::new(false);
        let mut users = Users::new("getent", &ending);
        users.limit = Duration::from_secs(60);
        assert_eq!(users.name(0), "root");
        assert_eq!(users.name(4_000_000_001), "4000000001", "nobody has that number");
        assert_eq!(Users::new("/nowhere/getent", &ending).name(0), "0");
    }

    #[test]
    fn a_directory_that_never_ends_holds_nobody_up() {
        let ending = AtomicBool::new(false);
        // It writes until the pipe is full, and then stands still.
        let mut users = Users::new("yes", &ending);
        assert_eq!(users.name(0), "0");
        assert!(users.silent.is_some() && users.names.is_empty(), "asked again later");
        ending.store(true, Ordering::Relaxed);
        users.silent = None;
        assert_eq!(users.ask("0"), None, "an agent that ends waits for nobody");
    }
}
