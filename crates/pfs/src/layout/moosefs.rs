//! MooseFS: files are cut into chunks of 64 MiB, each on a chunk server (or several) that the
//! master chooses. `mfsfileinfo` names them. New files obey the storage class of their directory,
//! or their own, which `mfssetsclass` sets.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;

use tidepool_proto::{Error, ErrorKind, Result};

use super::runner::Runner;
use super::{Layout, LayoutHints, LayoutOutcome, Striping};

const FS_TYPE: &str = "fuse.mfs";
const CHUNK_BYTES: u64 = 64 << 20;
/// What names a storage class in hints, as it names a pool elsewhere.
const CLASS: &str = "pool:";

pub(crate) struct MooseFs;

/// The servers of each chunk, as `mfsfileinfo` prints them: a line for each chunk, then one for
/// each copy. A chunk that has no bytes, or no valid copy, has no name.
fn servers_of_chunks(text: &str) -> Vec<String> {
    let mut servers: Vec<String> = Vec::new();
    let mut chunk = None;
    for line in text.lines().filter_map(|line| line.strip_prefix('\t')) {
        if let Some(rest) = line.strip_prefix("chunk ") {
            let number = rest.split(':').next().and_then(|number| number.parse::<usize>().ok());
            // In order, so that a number can ask for no more than the lines that were printed.
            chunk = number.filter(|number| *number == servers.len());
            servers.extend(chunk.map(|_| String::new()));
        } else if let (Some(chunk), Some(server)) = (chunk, valid_copy(line)) {
            let names = &mut servers[chunk];
            if !names.is_empty() {
                names.push('+');
            }
            names.push_str(server);
        }
    }
    servers
}

/// Address and port in a line such as `copy 1: 10.0.0.2:9422 (status:VALID)`.
fn valid_copy(line: &str) -> Option<&str> {
    let (_, place) = line.trim_start().strip_prefix("copy ")?.split_once(": ")?;
    let (server, status) = place.split_once(' ')?;
    status.contains("VALID").then_some(server).filter(|_| !status.contains("INVALID"))
}

/// The class in a line such as `/pfs/file: east`.
fn class_of(text: &str) -> Option<String> {
    let (_, class) = text.trim_end().rsplit_once(": ")?;
    Some(class.to_owned())
}

impl Striping for MooseFs {
    fn runs_a_tool(&self) -> bool {
        true
    }

    fn read(&self, runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Layout {
        let chunks = Layout {
            stripe_size_bytes: Some(CHUNK_BYTES),
            ..Layout::unknown(FS_TYPE, "chunks, on any of its servers")
        };
        let Ok(path) = runner.path_of(descriptor).map(OsString::from) else { return chunks };
        let class = runner.run("mfsgetsclass", std::slice::from_ref(&path));
        let class = class.ok().filter(|output| output.succeeded);
        let pool = class.and_then(|output| class_of(&output.standard_output));
        if runner.is_directory(descriptor) {
            return Layout { pool, ..chunks };
        }
        let note = match runner.run("mfsfileinfo", &[path]) {
            Ok(output) if output.succeeded => {
                let stripes = servers_of_chunks(&output.standard_output);
                return Layout { pool, stripes, note: None, ..chunks };
            }
            Ok(output) => output.standard_error.trim().to_owned(),
            Err(error) => format!("mfsfileinfo, which names the servers: {error}"),
        };
        Layout { pool, note: Some(note), ..chunks }
    }

    fn apply(
        &self,
        runner: &dyn Runner,
        descriptor: BorrowedFd<'_>,
        hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        const FIXED: &str = "MooseFS has chunks of 64 MiB on servers that its storage classes \
             choose: only `pool:CLASS` can be asked for";
        let [server] = hints.servers.as_slice() else {
            return Ok(LayoutOutcome::Ignored(FIXED.to_owned()));
        };
        let Some(class) = server.strip_prefix(CLASS).filter(|class| !class.starts_with('-')) else {
            return Ok(LayoutOutcome::Ignored(FIXED.to_owned()));
        };
        let path = runner
            .path_of(descriptor)
            .map_err(|error| Error::pfs("finding the name of a file for its class", error))?;
        match runner.run("mfssetsclass", &[class.into(), path.clone().into_os_string()]) {
            Ok(output) if output.succeeded => Ok(match hints {
                LayoutHints { stripe_size_bytes: None, stripe_count: None, .. } => {
                    LayoutOutcome::Applied
                }
                _ => LayoutOutcome::Partly(FIXED.to_owned()),
            }),
            Ok(output) => {
                let said = format!("{}{}", output.standard_error, output.standard_output);
                let what = "setting the storage class of a file";
                Err(Error::new(ErrorKind::Unsupported, what, path.display().to_string())
                    .caused_by(std::io::Error::other(said.trim().to_owned()))
                    .remedy("`mfsscadmin MOUNT list` names the classes that there are"))
            }
            Err(error) => Ok(LayoutOutcome::Ignored(format!(
                "mfssetsclass, which sets storage classes: {error}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_without_bytes_or_a_valid_copy_have_no_server() {
        let text = "a:\n\tchunk 0: 09_01 / (id:9 ver:1)\n\t\tcopy 1: 10.0.0.2:9422 (status:VALID)\n\
            \tchunk 1: empty\n\tchunk 2: 0B_01 / (id:11 ver:1)\n\
            \t\tcopy 1: 10.0.0.1:9422 (status:INVALID)\n\
            \t\tcopy 2: 10.0.0.3:9422 (status:VALID)\n\t\tcopy 3: 10.0.0.1:9422 (status:VALID)\n";
        assert_eq!(servers_of_chunks(text), ["10.0.0.2:9422", "", "10.0.0.3:9422+10.0.0.1:9422"]);
        assert!(servers_of_chunks("a:\n\tno chunks - empty file\n").is_empty());
        assert!(servers_of_chunks("a:\n\tchunk 18446744073709551615: x\n").is_empty());
        assert_eq!(class_of("/pfs/a: b: 2\n").as_deref(), Some("2"));
    }
}
