//! OrangeFS: directory hints `user.pvfs2.num_dfiles`, `.dist_name` and `.dist_params`, which rule
//! files made in the directory later. Values are texts that end in a zero byte. Ordered servers
//! are set by the tool `ofs_setdirhint`, which knows the addresses behind server numbers.

use std::os::fd::BorrowedFd;

use tidepool_proto::{Error, Result};

use super::runner::Runner;
use super::{Layout, LayoutHints, LayoutOutcome, Striping};

const FS_TYPE: &str = "orangefs";
const DFILES: &str = "user.pvfs2.num_dfiles";
const DISTRIBUTION: &str = "user.pvfs2.dist_name";
const PARAMETERS: &str = "user.pvfs2.dist_params";

pub(crate) struct OrangeFs;

fn text_of(runner: &dyn Runner, descriptor: BorrowedFd<'_>, name: &str) -> Option<String> {
    let value = runner.get_xattr(descriptor, name).ok()??;
    Some(String::from_utf8(value).ok()?.trim_end_matches('\0').to_owned())
}

fn set(runner: &dyn Runner, at: BorrowedFd<'_>, name: &str, text: &str) -> Result<()> {
    runner.set_xattr(at, name, format!("{text}\0").as_bytes()).map_err(|error| {
        Error::pfs(format!("setting the directory hint {name}"), error)
            .remedy("set it with ofs_setdirhint; pvfs2fuse cannot pass attributes on")
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
        let count = text_of(runner, descriptor, DFILES).and_then(|text| text.parse().ok());
        let size = text_of(runner, descriptor, PARAMETERS).and_then(|text| strip_size(&text));
        if count.is_none() && size.is_none() {
            return Layout::unknown(FS_TYPE, "no hints: the default of the file system");
        }
        Layout {
            fs_type: FS_TYPE.to_owned(),
            stripe_size_bytes: size,
            stripe_count: count,
            note: text_of(runner, descriptor, DISTRIBUTION),
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
