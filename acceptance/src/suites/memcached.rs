//! memcached's own tests in Perl, and clients that others wrote, on the burst buffer's server and
//! on memcached itself, compared assertion by assertion. `conformance/memcached.toml` says which
//! tests run.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::verdicts::{Rule, Verdict, Verdicts, judge};
use super::{Places, clients, conformance, need};
use crate::environment;
use crate::outcome::Outcome;
use crate::process;

/// The version whose tests run.
pub const VERSION: &str = "1.6.18";
const FILE: &str = "memcached.toml";
const NAME: &str = "memcached's tests on buffer";
/// Tests that take moments, of what clients of the buffer use.
const SHORT: [&str; 7] =
    ["bogus-commands", "cas", "flags", "getset", "line-lengths", "metaget", "noreply"];
const PLACE: &str = "MEMCACHED_SOURCE";
/// Seconds of one test; the longest take ten.
const LIMIT_SECONDS: &str = "45";
const LIMIT: Duration = Duration::from_secs(60);
/// Tests at a time: most of them wait for their time to be over.
const JOBS: usize = 4;
/// Runs a test with both of its outputs as one.
const MERGED: &str = "open STDERR, '>&', STDOUT or die; exec $^X, @ARGV";

/// `conformance/memcached.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectations {
    /// The tests that run: names without `.t`.
    tests: Vec<String>,
    /// Tests of what no client of the buffer sees.
    other_subject: Vec<Rule>,
    /// Assertions that fail on the buffer although memcached keeps them.
    #[serde(default)]
    deviation: Vec<Rule>,
}

/// Runs the tests on both servers and judges by comparison.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    need(&[("memcached", "memcached"), ("perl", "perl"), ("memccp", "libmemcached-tools")])?;
    let (expectations, source) = (expectations()?, source()?);
    every_test_is_listed(&source, &expectations)?;
    let only = places.options.only.as_deref();
    let names: Vec<&str> = expectations.tests.iter().map(String::as_str).collect();
    let names: Vec<&str> =
        names.into_iter().filter(|name| only.is_none_or(|only| name.contains(only))).collect();
    let ours = build_server()?;
    let servers = (ours.as_path(), source.as_path());
    let mut outcomes =
        vec![compare(places, servers, (&names, &expectations.deviation), only.is_none())?];
    if only.is_none() {
        outcomes.extend(clients::run(&ours, Path::new("memcached"))?);
    }
    Ok(outcomes)
}

/// Runs those that take moments, where the distribution has the version that they are of.
pub fn run_short(places: &Places) -> Result<Vec<Outcome>> {
    need(&[("memcached", "memcached"), ("perl", "perl")])?;
    let version = process::read(&mut process::command("memcached", &["-V"]))?;
    if version.trim() != format!("memcached {VERSION}") {
        let mut outcome = Outcome::new(NAME);
        let reason = format!("{NAME}: this machine has {}, not {VERSION}", version.trim());
        outcome.skipped.push(reason);
        return Ok(vec![outcome]);
    }
    let (expectations, source, ours) = (expectations()?, source()?, build_server()?);
    let servers = (ours.as_path(), source.as_path());
    compare(places, servers, (&SHORT, &expectations.deviation), false).map(|it| vec![it])
}

fn expectations() -> Result<Expectations> {
    let path = conformance(FILE);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(toml::from_str(&text)?)
}

/// The verdicts of some tests on the server `ours`, by those on memcached; `whole` where they are
/// all that there are.
fn compare(
    places: &Places,
    (ours, source): (&Path, &Path),
    (names, deviations): (&[&str], &[Rule]),
    whole: bool,
) -> Result<Outcome> {
    let scratch = places.scratch.path();
    let theirs = Bench::prepare(scratch, "theirs", source, Path::new("memcached"))?;
    let bench = Bench::prepare(scratch, "ours", source, ours)?;
    let below = theirs.verdicts(names)?;
    ensure!(!below.is_empty() || names.is_empty(), "memcached itself passes nothing");
    let mut buffer = bench.verdicts(names)?;
    for test in below.keys().filter(|test| !buffer.contains_key(*test)).cloned().collect::<Vec<_>>()
    {
        buffer.insert(test, Verdict::Failed("did not run".to_owned()));
    }
    Ok(judge(NAME, &below, &buffer, (deviations, FILE), whole))
}

/// A test is run or left out for a reason; none is forgotten.
fn every_test_is_listed(source: &Path, expectations: &Expectations) -> Result<()> {
    let mut forgotten = Vec::new();
    for entry in std::fs::read_dir(source.join("t"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".t") else { continue };
        let runs = expectations.tests.iter().any(|test| test == name);
        let is_left_out = expectations.other_subject.iter().any(|rule| rule.covers(name));
        if runs == is_left_out {
            forgotten.push(name.to_owned());
        }
    }
    forgotten.sort();
    ensure!(forgotten.is_empty(), "conformance/{FILE} decides not on {}", forgotten.join(", "));
    Ok(())
}

/// The server as contributors build it, with memcached's arguments.
fn build_server() -> Result<PathBuf> {
    let arguments =
        ["build", "--quiet", "--locked", "--package", "tidepool-buffer", "--example", "server"];
    process::show(&mut environment::cargo(&arguments))?;
    Ok(environment::target().join("debug/examples/server"))
}

/// Where the tests are: a directory that the user names, or what the distribution's package is made
/// of. That is fetched by lists of packages of its own, so nothing of the machine's is changed.
fn source() -> Result<PathBuf> {
    let name = format!("memcached-{VERSION}");
    if let Some(place) = std::env::var_os(PLACE) {
        return PathBuf::from(place).canonicalize().context(PLACE);
    }
    let tools = environment::target().join("tools");
    let root = tools.join(&name);
    if root.is_dir() {
        return Ok(root);
    }
    std::fs::create_dir_all(&tools)?;
    let fresh = tempfile::tempdir_in(&tools)?;
    eprintln!("x: fetching the source of memcached by apt-get, into {}", root.display());
    let archive = fetch(fresh.path()).with_context(|| {
        format!("set {PLACE} to an unpacked source of memcached {VERSION}, if apt has another one")
    })?;
    let mut unpack = process::command("tar", &["-xf"]);
    process::read(unpack.arg(&archive).arg("-C").arg(fresh.path()))?;
    // Whole or not there.
    std::fs::rename(fresh.path().join(&name), &root).context("no such version in the archive")?;
    Ok(root)
}

fn fetch(directory: &Path) -> Result<PathBuf> {
    let parts = directory.join("parts");
    let lists = directory.join("lists");
    std::fs::create_dir_all(&parts)?;
    std::fs::create_dir_all(lists.join("partial"))?;
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(std::fs::read_dir("/etc/apt/sources.list.d")?.flatten().map(|it| it.path()));
    for file in files.iter().filter(|file| file.is_file()) {
        let Some(name) = file.file_name() else { continue };
        std::fs::write(parts.join(name), of_sources(&std::fs::read_to_string(file)?))?;
    }
    let apt = |words: &[&str]| {
        let mut command = process::command("apt-get", &["-qq", "-o", "APT::Sandbox::User=root"]);
        for (name, path) in [("Etc::SourceParts", &parts), ("State::Lists", &lists)] {
            command.arg("-o").arg(format!("Dir::{name}={}", path.display()));
        }
        for setting in ["Dir::Etc::SourceList=/dev/null", "Dir::Cache::pkgcache="] {
            command.args(["-o", setting]);
        }
        command.args(["-o", "Dir::Cache::srcpkgcache="]).args(words).current_dir(directory);
        command
    };
    // Lists of others than the distribution may have no sources; what is missing shows next.
    let _ = process::capture(&mut apt(&["update"]))?;
    process::read(&mut apt(&["source", "--download-only", "memcached"]))?;
    let start = format!("memcached_{VERSION}.orig.tar.");
    let mut found = std::fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with(&start) && !name.ends_with(".asc"))
    };
    found.find(is_archive).with_context(|| format!("no {start}* came"))
}

/// A list of packages turned into one of their sources.
fn of_sources(list: &str) -> String {
    let turned = list.lines().map(|line| match line.split_once(char::is_whitespace) {
        Some(("Types:", _)) => "Types: deb-src".to_owned(),
        Some(("deb", rest)) => format!("deb-src {rest}"),
        _ => line.to_owned(),
    });
    turned.map(|line| line + "\n").collect()
}

/// A copy of the tests whose `memcached-debug` is a given server.
struct Bench(PathBuf);

impl Bench {
    fn prepare(parent: &Path, name: &str, source: &Path, server: &Path) -> Result<Self> {
        let root = parent.join(name);
        std::fs::create_dir(&root)?;
        let mut copy = process::command("cp", &["-r"]);
        process::read(copy.arg(source.join("t")).arg(&root))?;
        // Its help tells what the server has: neither sockets of Unix nor UDP. The distribution's
        // program has no such option as `relaxed_privileges`, which the tests always give.
        let script = format!(
            "#!/bin/sh\n[ \"$1\" != -h ] || {{ echo memcached 1.1.; exit 0; }}\n\
             for word; do\n    shift\n    case \"$word\" in\n    relaxed_privileges)\n        \
             set -- \"$@\" no_hashexpand ;;\n    *) set -- \"$@\" \"$word\" ;;\n    esac\ndone\n\
             exec {} -l 127.0.0.1 \"$@\" >/dev/null 2>&1\n",
            server.display()
        );
        executable(&root.join("memcached-debug"), &script)?;
        executable(&root.join("timedrun"), "#!/bin/sh\nshift\nexec \"$@\"\n")?;
        Ok(Bench(root))
    }

    fn verdicts(&self, names: &[&str]) -> Result<Verdicts> {
        let queue = Mutex::new(names.iter());
        let next = || queue.lock().ok()?.next().copied();
        let worker = || {
            let mut found = Verdicts::new();
            while let Some(name) = next() {
                found.extend(read_verdicts(name, &self.run_one(name)?));
            }
            Ok(found)
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..JOBS).map(|_| scope.spawn(worker)).collect();
            let mut all = Verdicts::new();
            for worker in workers {
                let found: Result<Verdicts> = match worker.join() {
                    Ok(found) => found,
                    Err(_) => bail!("a worker panicked"),
                };
                all.extend(found?);
            }
            Ok(all)
        })
    }

    /// What a test printed. `timeout` ends its server too.
    fn run_one(&self, name: &str) -> Result<String> {
        let arguments = ["--kill-after=5", LIMIT_SECONDS, "perl", "-e", MERGED];
        let mut command: Command = process::command("timeout", &arguments);
        command.arg(format!("t/{name}.t")).current_dir(&self.0);
        let output = process::capture_within(&mut command, LIMIT)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn executable(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)?;
    Ok(std::fs::set_permissions(path, Permissions::from_mode(0o755))?)
}

/// Assertions by the number of each; their words, with what they got, are the detail of those that
/// failed.
fn read_verdicts(name: &str, text: &str) -> Verdicts {
    const DETAIL_BYTES_MAX: usize = 300;
    let mut verdicts = Verdicts::new();
    let mut latest = None;
    for line in text.lines() {
        let (passed, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => {
                let detail = latest.as_ref().and_then(|key| verdicts.get_mut(key));
                if let (Some(Verdict::Failed(detail)), Some(words)) =
                    (detail, line.strip_prefix('#'))
                {
                    let is_place = words.contains("Failed test") || words.contains(" at t/");
                    if !is_place && detail.len() + words.len() < DETAIL_BYTES_MAX {
                        detail.push_str(&format!(" {}", words.trim()));
                    }
                }
                continue;
            }
        };
        let (number, words) = rest.split_once(' ').unwrap_or((rest, ""));
        let key = format!("{name} {number}");
        let words = words.trim_start_matches("- ");
        let verdict = match passed {
            true if words.starts_with("# skip") => Verdict::Skipped(words.to_owned()),
            true => Verdict::Passed,
            false => Verdict::Failed(words.chars().take(DETAIL_BYTES_MAX / 2).collect()),
        };
        verdicts.insert(key.clone(), verdict);
        latest = Some(key);
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_are_read_with_what_they_got() {
        let text = "1..3\nok 1 - stored\nnot ok 2 - gone\n\n#   Failed test 'gone'\n#   at t/a.t \
            line 3.\n#          got: 'x\n# '\n#     expected: 'y'\nok 3 # skip no UDP\n";
        let verdicts = read_verdicts("a", text);
        assert_eq!(verdicts["a 1"], Verdict::Passed);
        let failed = Verdict::Failed("gone at t/a.t got: 'x ' expected: 'y'".into());
        assert_eq!(verdicts["a 2"].word(), failed.word());
        assert!(verdicts["a 2"].complaint().unwrap().ends_with("got: 'x ' expected: 'y'"));
        assert_eq!(verdicts["a 3"], Verdict::Skipped("# skip no UDP".into()));
    }

    #[test]
    fn lists_of_packages_become_lists_of_sources() {
        let list = "# a\nTypes: deb\nURIs: x\ndeb [a=b] y main\ndeb-src z main\n";
        let sources = "# a\nTypes: deb-src\nURIs: x\ndeb-src [a=b] y main\ndeb-src z main\n";
        assert_eq!(of_sources(list), sources);
    }
}
