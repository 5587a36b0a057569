//! OrangeFS: directory hints `user.pvfs2.num_dfiles`, `.dist_name` and `.dist_params`, which rule
//! files made in the directory later. Files carry none, so for a file its directory is asked; the
//! FUSE client passes none on at all. Values are texts that end in a zero byte. Ordered servers
//! are set by the tool `ofs_setdirhint`, which knows the addresses behind server numbers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use tidepool_proto::{Error, Result};

use super::runner::Runner;
use super::{Layout, LayoutHints, LayoutOutcome, Striping};

const FS_TYPE: &str = "orangefs";
const DFILES: &str = "user.pvfs2.num_dfiles";
const DISTRIBUTION: &str = "user.pvfs2.dist_name";
const PARAMETERS: &str = "user.pvfs2.dist_params";

pub(crate) struct OrangeFs;

/// The hints of a directory.
struct Hints {
    count: Option<u32>,
    size: Option<u64>,
    distribution: Option<String>,
}

fn text_of(
    runner: &dyn Runner,
    directory: BorrowedFd<'_>,
    name: &str,
) -> io::Result<Option<String>> {
    let value = runner.get_xattr(directory, name)?;
    let text = value.and_then(|value| String::from_utf8(value).ok());
    Ok(text.map(|text| text.trim_end_matches('\0').to_owned()))
}

fn hints_of(runner: &dyn Runner, directory: BorrowedFd<'_>) -> io::Result<Hints> {
    let parameters = text_of(runner, directory, PARAMETERS)?;
    Ok(Hints {
        count: text_of(runner, directory, DFILES)?.and_then(|text| text.parse().ok()),
        size: parameters.and_then(|text| strip_size(&text)),
        distribution: text_of(runner, directory, DISTRIBUTION)?,
    })
}

fn set(runner: &dyn Runner, at: BorrowedFd<'_>, name: &str, text: &str) -> Result<()> {
    runner.set_xattr(at, name, format!("{text}\0").as_bytes()).map_err(|error| {
        Error::pfs(format!("setting the directory hint {name}"), error).remedy(
            "pvfs2fuse passes no attributes on: `pvfs2-xattr -s -k KEY -v VALUE DIR` sets the \
                 hint where PVFS2TAB_FILE names the file system",
        )
    })
}

/// Value of `strip_size` in a list of parameters such as `strip_size:65536+other:1`.
fn strip_size(parameters: &str) -> Option<u64> {
    parameters
        .split(['+', ','])
        .filter_map(|pair| pair.split_once(':'))
        .find(|(name, _)| name.trim() == "strip_size")
        .and_then(|(_, value)| value.trim().parse().ok())
}

impl Striping for OrangeFs {
    fn read(&self, runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Layout {
        let is_directory = runner.is_directory(descriptor);
        let hints = match is_directory {
            true => hints_of(runner, descriptor),
            false => runner
                .open_parent(descriptor)
                .and_then(|directory| hints_of(runner, directory.as_fd())),
        };
        let hints = match hints {
            Ok(hints) => hints,
            Err(error) => {
                let note = format!("cannot be read here ({error}): `pvfs2-viewdist -f` tells it");
                return Layout::unknown(FS_TYPE, note);
            }
        };
        if hints.count.is_none() && hints.size.is_none() {
            let note = "no hints for its directory: new files get the default of the file system";
            return Layout::unknown(FS_TYPE, note);
        }
        // What a file got is with the servers; hints may have been set after it was made.
        let of_new_files = (!is_directory).then(|| "as its directory asks for new files".into());
        Layout {
            fs_type: FS_TYPE.to_owned(),
            stripe_size_bytes: hints.size,
            stripe_count: hints.count,
            note: of_new_files.or(hints.distribution),
            ..Layout::default()
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
                "OrangeFS takes layout hints of directories only, through a mount".to_owned(),
            ));
        }
        if let Some(size) = hints.stripe_size_bytes {
            // Parameters without a named distribution are not looked at.
            set(runner, descriptor, DISTRIBUTION, "simple_stripe")?;
            set(runner, descriptor, PARAMETERS, &format!("strip_size:{size}"))?;
        }
        if let Some(count) = hints.stripe_count {
            set(runner, descriptor, DFILES, &format!("{count:05}"))?;
        }
        if hints.servers.is_empty() {
            return Ok(LayoutOutcome::Applied);
        }
        let list = format!("{}:{}", hints.servers.len(), hints.servers.join(":"));
        let path = runner
            .path_of(descriptor)
            .map_err(|error| Error::pfs("finding the path of a directory", error))?;
        let arguments = ["-l".into(), "list".into(), "-L".into(), list.into(), path.into()];
        match runner.run("ofs_setdirhint", &arguments) {
            Ok(output) if output.succeeded => Ok(LayoutOutcome::Applied),
            Ok(output) => Ok(LayoutOutcome::Partly(format!(
                "ofs_setdirhint did not take the servers: {}",
                output.standard_error.trim()
            ))),
            Err(error) => Ok(LayoutOutcome::Partly(format!(
                "the servers need the tool ofs_setdirhint, which cannot be run: {error}"
            ))),
        }
    }
}
