//! GlusterFS: a volume without shards keeps each file on one brick, which the attribute
//! `glusterfs.pathinfo` names. One with shards cuts files up and places the pieces by hash; the
//! client's own facts (`.meta` in the directory where it is mounted) tell their length. Neither can
//! be asked for.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tidepool_proto::Result;

use super::runner::Runner;
use super::{Layout, LayoutHints, LayoutOutcome, Striping};

const PLACE: &str = "glusterfs.pathinfo";
const GRAPH: &str = ".meta/graphs/active";
/// Length of a shard where the volume sets none.
const SHARD_BYTES_DEFAULT: u64 = 64 << 20;

#[derive(Default)]
pub(crate) struct Gluster {
    /// Length of a shard in bytes, if there are any; asked for once.
    shard_bytes: OnceLock<Option<u64>>,
}

impl Gluster {
    fn shard_bytes(&self, runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Option<u64> {
        *self.shard_bytes.get_or_init(|| {
            let path = runner.path_of(descriptor).ok()?;
            path.ancestors().find_map(|above| shards_of_mount(runner, above))
        })
    }
}

/// Length of a shard of the volume that is mounted there.
fn shards_of_mount(runner: &dyn Runner, mount: &Path) -> Option<u64> {
    let graph = mount.join(GRAPH);
    let is_shard = |part: &PathBuf| {
        runner.text_of(&part.join("type")).is_ok_and(|kind| kind.trim() == "features/shard")
    };
    let shard = runner.entries_of(&graph).ok()?.into_iter().find(is_shard)?;
    let set = runner.text_of(&shard.join("options/shard-block-size"));
    set.map_or(Some(SHARD_BYTES_DEFAULT), |text| bytes_of(text.trim()))
}

/// A size as GlusterFS writes it: `16MB` is 16 MiB.
fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        "TB" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| *bytes > 0)
}

/// Hosts and directories of the bricks in a text such as
/// `(<DISTRIBUTE:vol-dht> <POSIX(/disk/brick):host:/disk/brick/file>)`.
fn bricks(text: &str) -> Vec<String> {
    let brick = |part: &str| {
        let (directory, rest) = part.split_once("):")?;
        let (host, _) = rest.split_once(':')?;
        Some(format!("{host}:{directory}"))
    };
    text.split("<POSIX(").skip(1).filter_map(brick).collect()
}

impl Striping for Gluster {
    fn read(&self, runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Layout {
        let fs_type = "fuse.glusterfs";
        if let Some(bytes) = self.shard_bytes(runner, descriptor) {
            return Layout {
                stripe_size_bytes: Some(bytes),
                ..Layout::unknown(fs_type, "shards, placed by hash")
            };
        }
        let place = runner.get_xattr(descriptor, PLACE).ok().flatten();
        let servers = place.map(|place| bricks(&String::from_utf8_lossy(&place)));
        match servers.unwrap_or_default() {
            servers if servers.len() == 1 && !runner.is_directory(descriptor) => Layout {
                fs_type: fs_type.to_owned(),
                stripe_count: Some(1),
                servers,
                ..Layout::default()
            },
            _ => Layout::unknown(fs_type, "it places whole files by hash"),
        }
    }

    fn apply(
        &self,
        _runner: &dyn Runner,
        _descriptor: BorrowedFd<'_>,
        _hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        Ok(LayoutOutcome::Ignored(
            "GlusterFS places files and shards by hash; the length of shards is an option of the \
             volume (`features.shard-block-size`)"
                .to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_bricks_are_read() {
        assert_eq!(bytes_of("16MB"), Some(16 << 20));
        assert_eq!(bytes_of("4194304"), Some(4 << 20));
        assert_eq!(bytes_of("64KB"), Some(64 << 10));
        assert_eq!((bytes_of("MB"), bytes_of("0"), bytes_of("4.5MB")), (None, None, None));
        let text = "(<DISTRIBUTE:vol-dht> <POSIX(/run/disk/brick):d2:/run/disk/brick/f>)";
        assert_eq!(bricks(text), ["d2:/run/disk/brick"]);
        assert!(bricks("(<DISTRIBUTE:vol-dht>").is_empty());
    }
}
