//! Java programs: how they are started, what became of them, and where their output is.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

use super::daemon::last_lines;
use crate::cleanup::{self, Guard};
use crate::{environment, process};

/// What Java 17 keeps closed and Hadoop, Spark and Alluxio reach into.
const OPENED: [&str; 13] = [
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.security.action",
    "sun.util.calendar",
];

const NEEDED: &str = "`java` is needed here (package `openjdk-17-jdk-headless`)";

/// A virtual machine to be started.
#[derive(Clone, Debug)]
pub struct Java {
    /// Directories and jars, separated by colons.
    pub class_path: String,
    /// The largest heap, as `-Xmx` takes it.
    pub heap: String,
    /// Further options of the virtual machine.
    pub options: Vec<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// Where it runs, for programs that leave files there; here without it.
    pub directory: Option<PathBuf>,
}

/// What a program said.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Both outputs.
    pub text: String,
}

impl Java {
    /// A machine with this class path and heap.
    pub fn new(class_path: impl Into<String>, heap: &str) -> Self {
        Java {
            class_path: class_path.into(),
            heap: heap.to_owned(),
            options: Vec::new(),
            environment: Vec::new(),
            directory: None,
        }
    }

    /// Sets a system property.
    #[must_use]
    pub fn property(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.options.push(format!("-D{name}={value}"));
        self
    }

    /// For programs that are short or mostly wait: starts soon, leaves the processors to others.
    #[must_use]
    pub fn light(mut self) -> Self {
        self.options.extend(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"].map(String::from));
        self
    }

    /// For programs that run long on few processors: as light, but compiled as well as can be.
    #[must_use]
    pub fn steady(mut self) -> Self {
        self.options.retain(|option| !option.starts_with("-XX:TieredStopAtLevel"));
        self
    }

    /// For programs that log by reload4j and bring no settings of it: warnings and errors go to
    /// their output.
    #[must_use]
    pub fn logged(self) -> Self {
        let file = environment::checkout().join("acceptance/src/jvm/log4j.properties");
        self.property("log4j.configuration", format!("file:{}", file.display()))
    }

    /// With another heap.
    #[must_use]
    pub fn heap(mut self, heap: &str) -> Self {
        heap.clone_into(&mut self.heap);
        self
    }

    /// The command line that runs `main`.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, main: &str, arguments: &[S]) -> Command {
        let mut command = Command::new("java");
        command.arg(format!("-Xmx{}", self.heap)).args(opens()).args(&self.options);
        command.arg("-cp").arg(&self.class_path).arg(main).args(arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program to its end; both outputs go to `log`. A failure names the log and shows its
    /// last lines.
    pub fn run<S: AsRef<std::ffi::OsStr>>(
        &self,
        main: &str,
        arguments: &[S],
        log: &Path,
    ) -> Result<Ran> {
        Ran::of(&mut self.command(main, arguments), main, log)
    }
}

/// A program that is talked with, line by line. It is killed where it did not come to its end.
#[derive(Debug)]
pub struct Dialogue {
    main: String,
    /// Where its errors go.
    log: PathBuf,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    child: Child,
    kill: Option<Guard>,
}

impl Java {
    /// Starts a program to talk with; its errors go to `log`.
    pub fn talk<S: AsRef<std::ffi::OsStr>>(
        &self,
        main: &str,
        arguments: &[S],
        log: &Path,
    ) -> Result<Dialogue> {
        Dialogue::of(&mut self.command(main, arguments), main, log)
    }
}

impl Dialogue {
    /// Starts the command line of `main`; its errors go to `log`.
    pub fn of(command: &mut Command, main: &str, log: &Path) -> Result<Dialogue> {
        let errors = File::create(log).with_context(|| log.display().to_string())?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .context(NEEDED)?;
        let id = child.id();
        let kill = Some(cleanup::guard(move || process::signal(id, libc::SIGKILL)));
        let input = child.stdin.take().context("the input is a pipe")?;
        let output = BufReader::new(child.stdout.take().context("the output is a pipe")?);
        let (main, log) = (main.to_owned(), log.to_owned());
        Ok(Dialogue { main, log, input, output, child, kill })
    }

    /// Gives it a line.
    pub fn say(&mut self, line: &str) -> Result<()> {
        self.input
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("{} takes no line; {}", self.main, self.log.display()))
    }

    /// Its next line without what ends it; `None` where it says no more.
    pub fn hear(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        let bytes = self.output.read_line(&mut line)?;
        Ok((bytes > 0).then(|| line.trim_end_matches('\n').to_owned()))
    }

    /// The answer to `line`. Where it ends instead, the failure shows its last lines.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        self.say(line)?;
        self.answer()
    }

    /// As [`Dialogue::hear`], where it has to say something.
    pub fn answer(&mut self) -> Result<String> {
        match self.hear()? {
            Some(line) => Ok(line),
            None => {
                let status = self.wait()?;
                bail!("{}", self.failure(status))
            }
        }
    }

    /// Waits until it ends; a failure shows its last lines.
    pub fn end(mut self) -> Result<()> {
        let status = self.wait()?;
        if !status.success() {
            bail!("{}", self.failure(status));
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait()?;
        // Its number may be that of another process from now on.
        if let Some(kill) = self.kill.take() {
            cleanup::forget(kill);
        }
        Ok(status)
    }

    fn failure(&self, status: ExitStatus) -> String {
        let said = std::fs::read(&self.log).unwrap_or_default();
        let said = last_lines(&String::from_utf8_lossy(&said));
        format!("{} ended with {status}; {}:\n{said}", self.main, self.log.display())
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        if let Some(kill) = self.kill.take() {
            drop(kill);
            let _ = self.child.wait();
        }
    }
}

impl Ran {
    /// Runs the command of a program to its end; what it says goes to `log` as well.
    pub fn of(command: &mut Command, main: &str, log: &Path) -> Result<Ran> {
        let output = File::create(log).with_context(|| log.display().to_string())?;
        let mut child =
            command.stdout(output.try_clone()?).stderr(output).spawn().context(NEEDED)?;
        let id = child.id();
        let kill = cleanup::guard(move || process::signal(id, libc::SIGKILL));
        let status = child.wait()?;
        cleanup::forget(kill);
        let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
        if !status.success() {
            bail!("{main} ended with {status}; {}:\n{}", log.display(), last_lines(&text));
        }
        Ok(Ran { text })
    }

    /// A counter that a MapReduce job printed, such as `Data-local map tasks`; the last one.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let lines = self.text.lines().rev();
        let mut values = lines.filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
        values.next()?.trim().parse().ok()
    }

    /// What follows `mark` on a line of its own, in order.
    pub fn after<'a>(&'a self, mark: &'a str) -> impl Iterator<Item = &'a str> {
        self.text.lines().filter_map(move |line| Some(line.trim().strip_prefix(mark)?.trim()))
    }
}

/// The options that open what Java keeps closed.
pub fn opens() -> impl Iterator<Item = String> {
    let ignore = "-XX:+IgnoreUnrecognizedVMOptions".to_owned();
    let opened =
        OPENED.iter().map(|package| format!("--add-opens=java.base/{package}=ALL-UNNAMED"));
    std::iter::once(ignore).chain(opened)
}

/// Joins the parts of a class path that are there.
pub fn class_path(parts: &[&str]) -> String {
    let there: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    there.join(":")
}

/// Where Java is installed: containers of YARN ask for it.
pub fn home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("JAVA_HOME") {
        return Ok(home.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = std::env::split_paths(&path).map(|directory| directory.join("java"));
    let program = programs.into_iter().find(|program| program.is_file());
    let program = program.context("no `java` here (package `openjdk-17-jdk-headless`)")?;
    let program = program.canonicalize()?;
    let home = program.parent().and_then(Path::parent).context("java lies in no directory")?;
    Ok(home.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::Ran;

    #[test]
    fn counters_of_the_last_job_are_read() {
        let text = "\t\tData-local map tasks=3\n x\n\t\tData-local map tasks=4\nRESULT a b\n";
        let ran = Ran { text: text.to_owned() };
        assert_eq!(ran.counter("Data-local map tasks"), Some(4));
        assert_eq!(ran.counter("Rack-local map tasks"), None);
        assert_eq!(ran.after("RESULT").collect::<Vec<_>>(), ["a b"]);
    }
}
