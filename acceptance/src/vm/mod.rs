//! A virtual machine with the kernel of a distribution and control groups of version 2, and the
//! product's tests of what depends on the kernel, in it. The processor is emulated: it takes any
//! machine, and tells nothing about speed.

mod kernel;
mod root;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::arguments::VmOptions;
use crate::environment;
use crate::outcome::Outcome;
use crate::process;
use crate::suites;

/// Memory of the machine, in MiB.
const MEMORY_MIB: u64 = 1536;
/// Bytes of the volume that is the PFS.
const VOLUME_BYTES: u64 = 1 << 30;
/// Of the whole run; each test has its own limit inside of the machine.
const LIMIT: Duration = Duration::from_secs(1_200);
const LIMIT_LONG: Duration = Duration::from_secs(7_200);
/// What names of tests that take minutes begin with; the first process of the machine knows it.
const LONG: &str = "long-";
const EMULATOR: &str = "qemu-system-x86_64";

/// Boots the machine and runs the tests of `conformance/vm` in it.
pub fn run(options: &VmOptions) -> Result<Outcome> {
    let mut outcome = Outcome::new(format!("vm, kernel {}", options.kernel));
    if !cfg!(target_arch = "x86_64") || process::capture(Command::new(EMULATOR).arg("-h")).is_err()
    {
        outcome.skipped.push(format!("vm: no {EMULATOR} here"));
        return Ok(outcome);
    }
    let binary = environment::binary()?;
    let directory = environment::target().join("vm");
    std::fs::create_dir_all(&directory)?;
    let Some(kernel) = kernel::fetch(&directory, &options.kernel)? else {
        let kernel = &options.kernel;
        outcome.skipped.push(format!(
            "vm: apt knows no kernel {kernel}; try `apt-get update`, or another --kernel"
        ));
        return Ok(outcome);
    };
    let names = tests(options)?;
    let image = root::build(&directory, &kernel, &binary, &names)?;
    let volume = volume(&directory)?;
    let limit = if options.long { LIMIT_LONG } else { LIMIT };
    let output = process::capture_within(&mut boot(&kernel, &image, &volume), limit)?;
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    std::fs::write(directory.join("console.txt"), &said)?;
    judge(&said, &names, &mut outcome);
    Ok(outcome)
}

/// Names of the tests to run. Those that take minutes have a directory of their own.
fn tests(options: &VmOptions) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let long = ("vm/long", LONG);
    for (directory, start) in [("vm", ""), long].iter().take(1 + usize::from(options.long)) {
        for entry in std::fs::read_dir(suites::conformance(directory))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let Some(name) = name.strip_suffix(".sh") else { continue };
            names.push(format!("{start}{name}"));
        }
    }
    let wanted = |name: &String| options.only.as_deref().is_none_or(|only| name.contains(only));
    names.retain(wanted);
    names.sort();
    if names.is_empty() {
        bail!("no test of the virtual machine has this name");
    }
    Ok(names)
}

/// The file of a test.
fn script(name: &str) -> std::path::PathBuf {
    let (directory, name) = match name.strip_prefix(LONG) {
        Some(name) => ("vm/long", name),
        None => ("vm", name),
    };
    suites::conformance(directory).join(format!("{name}.sh"))
}

/// An empty ext4 volume.
fn volume(directory: &Path) -> Result<std::path::PathBuf> {
    let path = directory.join("volume.img");
    let file = std::fs::File::create(&path)?;
    file.set_len(VOLUME_BYTES)?;
    let mut format = process::command("mkfs.ext4", &["-q", "-F"]);
    process::read(format.arg(&path)).context("making the volume")?;
    Ok(path)
}

fn boot(kernel: &kernel::Kernel, image: &Path, volume: &Path) -> Command {
    let memory = MEMORY_MIB.to_string();
    let plain = ["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", &memory];
    let mut command = process::command(EMULATOR, &plain);
    command.args(["-nographic", "-no-reboot", "-nic", "none"]);
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(image);
    command.arg("-append").arg("console=ttyS0 quiet panic=-1 rdinit=/init");
    let drive = format!("file={},format=raw,if=virtio,cache=unsafe", volume.display());
    command.arg("-drive").arg(drive);
    command
}

/// Reads the console: what each test said between its marks, and how it ended.
fn judge(console: &str, names: &[String], outcome: &mut Outcome) {
    for name in names {
        let begin = format!("vm: begin {name}\n");
        let end = format!("vm: end {name} ");
        let said = console.split_once(&begin).map(|(_, rest)| rest);
        let ended = said.and_then(|said| said.split_once(&end));
        match ended.map(|(said, rest)| (said, rest.lines().next().unwrap_or_default())) {
            Some((_, "0")) => outcome.passed += 1,
            Some((said, code)) => {
                outcome.failed.push(format!("{name}: exit {code}: {}", last_line(said)));
                outcome.output.push_str(&format!("---- vm {name} ----\n{said}\n"));
            }
            None => {
                outcome.failed.push(format!("{name}: the machine ended before it"));
                outcome.output.push_str(&suites::tail(said.unwrap_or(console).as_bytes(), 60));
            }
        }
    }
    let facts = console.lines().filter(|line| {
        line.strip_prefix("vm: ").is_some_and(|line| {
            !["begin ", "end ", "over"].iter().any(|mark| line.starts_with(mark))
        })
    });
    outcome.notes.extend(facts.map(str::to_owned));
}

fn last_line(text: &str) -> &str {
    text.trim_end().lines().next_back().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_tells_how_each_test_ended() {
        let console = "boot\nvm: 6.1, 2 processors, up after 3 s\nvm: begin a\nvm: end a 0\n\
            vm: begin b\nno such file\nvm: end b 1\nvm: begin c\npanic\n";
        let mut outcome = Outcome::new("vm");
        judge(console, &["a".into(), "b".into(), "c".into(), "d".into()], &mut outcome);
        assert_eq!(outcome.passed, 1);
        let failed = [
            "b: exit 1: no such file",
            "c: the machine ended before it",
            "d: the machine ended before it",
        ];
        assert_eq!(outcome.failed, failed);
        assert_eq!(outcome.notes, ["vm: 6.1, 2 processors, up after 3 s"]);
    }
}
