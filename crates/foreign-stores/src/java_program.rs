//! The program of Java that speaks to a store for the controller, kept running so that a command
//! costs no start of a virtual machine: started on demand, given a time limit for each command,
//! started again after a pause when it died or hangs.
//!
//! Its lines are words and numbers (`java/stores`): a command is `NUMBER resize BYTES` or `NUMBER
//! limit`, its answer `NUMBER done BYTES` or `NUMBER failed KIND TEXT`; the first line is `ready
//! VERSION` or `refused KIND TEXT`. It ends with its input, so with this process, also when that
//! is killed.

mod running;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;
use tidepool_proto::{Error, ErrorKind, Result};

use running::{Running, Silence};

/// A program that answers nothing for so long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Pause before one that died is started again, doubled with each death up to the most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(16);
/// A virtual machine that finds its classes is ready long before.
const START_TIME: Duration = Duration::from_secs(30);
/// The largest number that Java has, and what a limit is where there is none.
pub(crate) const BYTES_MAX: u64 = i64::MAX as u64;
const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAIN: &str = "io.tidepool.stores.Stores";
/// A small heap; started soon rather than compiled well; no hidden state after a full heap.
const OPTIONS: [&str; 4] =
    ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError"];

/// How the program is started: entries of `java = { ... }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JavaConfiguration {
    /// Where the site has the configuration and the classes of the store, as `java -cp` takes it.
    pub class_path: String,
    /// The virtual machine; `java` where none is given.
    #[serde(default)]
    pub program: Option<PathBuf>,
    /// Further options of the virtual machine, such as `-DHADOOP_USER_NAME=hdfs`.
    #[serde(default)]
    pub options: Vec<String>,
    /// `tidepool-stores-VERSION.jar`, where it is in no usual place.
    #[serde(default)]
    pub jar: Option<PathBuf>,
}

/// The program for one store.
pub(crate) struct JavaProgram {
    store: String,
    command: Vec<String>,
    state: Mutex<State>,
    silence_max: Duration,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    number: u64,
    deaths: u32,
    /// Not started again before, and why the last one ended.
    rests: Option<(Instant, String)>,
}

impl JavaProgram {
    /// Starts the program with these arguments, and waits until it has found the store.
    ///
    /// # Errors
    /// `InvalidInput` where Java, the jar or the store's classes are not found, else what the store
    /// answered.
    pub fn start(
        store: &str,
        configuration: &JavaConfiguration,
        arguments: &[&str],
    ) -> Result<Self> {
        let program = JavaProgram {
            store: store.to_owned(),
            command: command(configuration, arguments)?,
            state: Mutex::default(),
            silence_max: SILENCE_MAX,
        };
        let deadline = Instant::now() + START_TIME;
        program.await_ready(&mut program.state.lock(), deadline)?;
        Ok(program)
    }

    /// Whether it runs. Never waits.
    pub fn is_running(&self) -> bool {
        // Held while a command is under way, which needs it running.
        self.state
            .try_lock()
            .is_none_or(|state| state.running.as_ref().is_some_and(Running::is_alive))
    }

    /// Has the store hold no more than `capacity_bytes`. Answers the capacity that it has now.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, `StoreUnavailable` where the program or the store does not
    /// answer, `PermissionDenied` and others as the store says.
    pub fn resize(&self, capacity_bytes: u64, deadline: Instant) -> Result<u64> {
        let asked = capacity_bytes.min(BYTES_MAX);
        self.ask(&format!("resize {asked}"), deadline)
    }

    /// The limit that the store has, whoever set it.
    ///
    /// # Errors
    /// As [`JavaProgram::resize`].
    pub fn limit(&self, deadline: Instant) -> Result<u64> {
        self.ask("limit", deadline)
    }

    fn ask(&self, command: &str, deadline: Instant) -> Result<u64> {
        let Some(mut state) = self.state.try_lock_until(deadline) else {
            let what = "another command was under way until the deadline";
            return Err(self.error(ErrorKind::TimedOut, what));
        };
        self.await_ready(&mut state, deadline)?;
        state.number += 1;
        let number = state.number;
        let line = format!("{number} {command}");
        let sent = state.running.as_mut().is_some_and(|running| running.say(&line));
        if !sent {
            return Err(self.bury(&mut state));
        }
        loop {
            let line = self.next_line(&mut state, deadline)?;
            let mut words = line.splitn(3, ' ');
            // Answers to commands that were given up come first.
            if words.next() != Some(number.to_string().as_str()) {
                continue;
            }
            let (kind, rest) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            state.deaths = 0;
            return match (kind, rest.parse()) {
                ("done", Ok(capacity_bytes)) => Ok(capacity_bytes),
                ("failed", _) => Err(self.failure(rest)),
                _ => Err(self.error(ErrorKind::Protocol, format!("it said `{line}`"))),
            };
        }
    }

    /// Starts it where it does not run, and reads its first line.
    fn await_ready(&self, state: &mut State, deadline: Instant) -> Result<()> {
        if state.running.as_ref().is_some_and(|running| !running.is_alive()) {
            // What it said last is with those that waited.
            let _ = self.bury(state);
        }
        if state.running.is_none() {
            if let Some((until, why)) = state.rests.take_if(|rests| Instant::now() < rests.0) {
                let again = until.saturating_duration_since(Instant::now()).as_secs() + 1;
                state.rests = Some((until, why.clone()));
                let remedy = format!("it is started again within {again} s");
                return Err(self.error(ErrorKind::StoreUnavailable, why).remedy(remedy));
            }
            let started = Running::start(&self.store, &self.command);
            state.running = Some(started.map_err(|error| self.not_started(error))?);
        }
        if state.running.as_ref().is_some_and(|running| running.is_ready) {
            return Ok(());
        }
        let line = self.next_line(state, deadline)?;
        match line.split_once(' ') {
            Some(("ready", VERSION)) => {
                if let Some(running) = &mut state.running {
                    running.is_ready = true;
                }
                Ok(())
            }
            Some(("ready", other)) => {
                state.running = None;
                let what = format!("its jar is of version {other}, this program of {VERSION}");
                let error = self.error(ErrorKind::InvalidInput, what);
                Err(error.remedy("install jar and program of one release"))
            }
            Some(("refused", why)) => {
                let error = self.failure(why);
                self.rest(state, error.detail().to_owned());
                Err(error)
            }
            _ => {
                self.rest(state, format!("it said `{line}`"));
                Err(self.error(ErrorKind::Protocol, format!("it said `{line}`")))
            }
        }
    }

    fn next_line(&self, state: &mut State, deadline: Instant) -> Result<String> {
        let Some(running) = &mut state.running else { return Err(self.bury(state)) };
        match running.hear(deadline) {
            Ok(line) => Ok(line),
            Err(Silence::Ended) => Err(self.bury(state)),
            Err(Silence::Still(silent)) if silent >= self.silence_max => {
                let why = format!("killed: it answered nothing for {} s", silent.as_secs());
                self.rest(state, why.clone());
                Err(self.error(ErrorKind::StoreUnavailable, why))
            }
            Err(Silence::Still(_)) => {
                Err(self.error(ErrorKind::TimedOut, "no answer by the deadline"))
            }
        }
    }

    /// It ended: says why.
    fn bury(&self, state: &mut State) -> Error {
        let words = state.running.take().map_or(String::new(), Running::last_words);
        let why = format!("it ended: {words}");
        self.rest(state, why.clone());
        let remedy = "it is started again; `java` of the store's entry says with what";
        self.error(ErrorKind::StoreUnavailable, why).remedy(remedy)
    }

    /// Ends it; it is not started again at once.
    fn rest(&self, state: &mut State, why: String) {
        state.running = None;
        let pause = (PAUSE_MIN * 2_u32.pow(state.deaths.min(4))).min(PAUSE_MAX);
        state.deaths = state.deaths.saturating_add(1);
        state.rests = Some((Instant::now() + pause, why));
    }

    fn error(&self, kind: ErrorKind, what: impl Into<String>) -> Error {
        let operation = format!("asking the Java program of store `{}`", self.store);
        Error::new(kind, operation, what.into())
    }

    fn not_started(&self, error: std::io::Error) -> Error {
        let what = format!("no program `{}`", self.command[0]);
        let remedy = "install Java 17 or newer, or give its path as `program` in `java`";
        self.error(ErrorKind::InvalidInput, what).caused_by(error).remedy(remedy)
    }

    /// What the store answered: `KIND TEXT`.
    fn failure(&self, answer: &str) -> Error {
        let (kind, text) = answer.split_once(' ').unwrap_or((answer, ""));
        let (kind, remedy) = match kind {
            "classes" => (
                ErrorKind::InvalidInput,
                "let `class_path` in `java` name the client classes of the store's release",
            ),
            "denied" => (
                ErrorKind::PermissionDenied,
                "let the program be a user who may, by `options` in `java` or by Kerberos",
            ),
            "invalid" => (ErrorKind::InvalidInput, "correct the entry of the store"),
            "unsupported" => (ErrorKind::Unsupported, "leave this store out"),
            _ => (
                ErrorKind::StoreUnavailable,
                "start the store, or let `class_path` in `java` name its configuration",
            ),
        };
        self.error(kind, text).remedy(remedy)
    }
}

/// The whole command line.
fn command(configuration: &JavaConfiguration, arguments: &[&str]) -> Result<Vec<String>> {
    let wrong = |what: &str, remedy: &str| {
        let operation = "looking for the Java program of a store";
        Error::new(ErrorKind::InvalidInput, operation, what).remedy(remedy)
    };
    if configuration.class_path.is_empty() {
        let remedy = "name the configuration and the client classes of the store";
        return Err(wrong("`class_path` in `java` is empty", remedy));
    }
    let jar = configuration.jar.clone().or_else(usual_jar);
    let Some(jar) = jar.filter(|jar| jar.is_file()) else {
        let what =
            format!("no {}", configuration.jar.clone().unwrap_or_else(name_of_jar).display());
        return Err(wrong(&what, "install it beside the program, or give its path as `jar`"));
    };
    let program = configuration.program.clone().unwrap_or_else(|| "java".into());
    let mut words = vec![program.display().to_string()];
    words.extend(OPTIONS.map(String::from));
    words.extend(configuration.options.iter().cloned());
    words.push("-cp".into());
    words.push(format!("{}:{}", jar.display(), configuration.class_path));
    words.push(MAIN.into());
    words.extend(arguments.iter().map(|word| (*word).to_owned()));
    Ok(words)
}

fn name_of_jar() -> PathBuf {
    format!("tidepool-stores-{VERSION}.jar").into()
}

/// Beside this program, as in `dist/`, or where packages have it.
fn usual_jar() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let beside = program.parent()?;
    let places = [beside, Path::new("/usr/share/tidepool"), &beside.join("../share/tidepool")];
    places.map(|place| place.join(name_of_jar())).into_iter().find(|jar| jar.is_file())
}

#[cfg(test)]
mod tests;
