//! BeeGFS: the tool `beegfs` (release 8) or `beegfs-ctl` (before). Patterns belong to directories
//! and rule files made in them later; the targets of a file are the file system's choice.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;

use tidepool_proto::{Error, ErrorKind, Result};

use super::runner::{CommandOutput, Runner};
use super::{Layout, LayoutHints, LayoutOutcome, Striping};

const FS_TYPE: &str = "beegfs";
/// Chunk sizes are powers of two from here on.
const CHUNK_BYTES_MIN: u64 = 64 << 10;

pub(crate) struct BeeGfs;

/// Runs the tool of release 8, or that of release 7 where there is none.
fn run(
    runner: &dyn Runner,
    eight: &[&str],
    seven: &[&str],
    path: &OsString,
) -> io::Result<CommandOutput> {
    let with_path = |arguments: &[&str]| -> Vec<OsString> {
        arguments.iter().map(OsString::from).chain([path.clone()]).collect()
    };
    match runner.run("beegfs", &with_path(eight)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            runner.run("beegfs-ctl", &with_path(seven))
        }
        other => other,
    }
}

/// A size as the tools print it: `512k`, `1M`.
fn parse_size(text: &str) -> Option<u64> {
    text.parse::<tidepool_proto::ByteSize>().ok().map(|size| size.0)
}

/// Reads what `--getentryinfo`, or `entry info --retro`, printed.
fn parse(text: &str) -> Layout {
    let mut layout = Layout { fs_type: FS_TYPE.to_owned(), ..Layout::default() };
    for line in text.lines().map(str::trim) {
        let field = line.trim_start_matches("+ ");
        if let Some(value) = field.strip_prefix("Chunksize:") {
            layout.stripe_size_bytes = parse_size(value.trim());
        } else if let Some(value) = field.strip_prefix("Number of storage targets:") {
            let number = |name: &str| {
                value
                    .split(';')
                    .find_map(|part| part.trim().strip_prefix(name)?.trim().parse().ok())
            };
            layout.stripe_count = number("actual:").or_else(|| number("desired:"));
        } else if let Some(value) = field.strip_prefix("Storage Pool:") {
            layout.pool = Some(value.trim().to_owned());
        } else if field.contains(" @ ") && line.starts_with("+ ") {
            layout.servers.push(field.to_owned());
        } else if let Some(value) = field.strip_prefix("Type:") {
            layout.note = Some(value.trim().to_owned());
        }
    }
    layout
}

impl Striping for BeeGfs {
    fn runs_a_tool(&self) -> bool {
        true
    }

    fn read(&self, runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Layout {
        let Ok(path) = runner.path_of(descriptor) else {
            return Layout::unknown(FS_TYPE, "the file has no name");
        };
        let eight = ["entry", "info", "--retro", "--verbose"];
        let seven = ["--getentryinfo", "--verbose"];
        match run(runner, &eight, &seven, &path.into_os_string()) {
            Ok(output) if output.succeeded => parse(&output.standard_output),
            Ok(output) => Layout::unknown(FS_TYPE, output.standard_error.trim()),
            Err(error) => Layout::unknown(
                FS_TYPE,
                format!("neither `beegfs` nor `beegfs-ctl` can be run: {error}"),
            ),
        }
    }

    fn apply(
        &self,
        runner: &dyn Runner,
        descriptor: BorrowedFd<'_>,
        hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        if !runner.is_directory(descriptor) {
            return Ok(LayoutOutcome::Ignored(
                "BeeGFS sets striping of directories, for files made in them later".to_owned(),
            ));
        }
        if hints.stripe_size_bytes.is_none() && hints.stripe_count.is_none() {
            return Ok(LayoutOutcome::Ignored("BeeGFS chooses the targets itself".to_owned()));
        }
        let (mut eight, mut seven) =
            (vec!["entry".to_owned(), "set".to_owned()], vec!["--setpattern".to_owned()]);
        let chunk = hints
            .stripe_size_bytes
            .map(|bytes| bytes.max(CHUNK_BYTES_MIN).checked_next_power_of_two().unwrap_or(1 << 62));
        if let Some(count) = hints.stripe_count {
            eight.push(format!("--num-targets={count}"));
            seven.push(format!("--numtargets={count}"));
        }
        if let Some(chunk) = chunk {
            eight.push(format!("--chunk-size={}KiB", chunk >> 10));
            seven.push(format!("--chunksize={}k", chunk >> 10));
        }
        let path = runner
            .path_of(descriptor)
            .map_err(|error| Error::pfs("finding the path of a directory", error))?;
        let eight: Vec<&str> = eight.iter().map(String::as_str).collect();
        let seven: Vec<&str> = seven.iter().map(String::as_str).collect();
        match run(runner, &eight, &seven, &path.into_os_string()) {
            Ok(output) if output.succeeded => Ok(outcome(hints, chunk)),
            Ok(output) => Err(Error::new(
                ErrorKind::Pfs,
                "setting a BeeGFS stripe pattern",
                output.standard_error.trim(),
            )),
            Err(error) => Ok(LayoutOutcome::Ignored(format!(
                "neither `beegfs` nor `beegfs-ctl` can be run: {error}"
            ))),
        }
    }
}

fn outcome(hints: &LayoutHints, chunk: Option<u64>) -> LayoutOutcome {
    if !hints.servers.is_empty() {
        return LayoutOutcome::Partly("BeeGFS chooses the targets itself".to_owned());
    }
    match chunk.filter(|_| hints.stripe_size_bytes != chunk) {
        Some(chunk) => LayoutOutcome::Partly(format!(
            "the stripe size was rounded up to {chunk} bytes: BeeGFS takes powers of two from \
             64 KiB"
        )),
        None => LayoutOutcome::Applied,
    }
}
