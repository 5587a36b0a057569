//! GPFS (IBM Storage Scale): the block size is fixed when the file system is made, and every file
//! is spread over all disks of its pool. Nothing can be asked for per file.

use std::os::fd::BorrowedFd;

use tidepool_proto::Result;

use super::runner::Runner;
use super::{Layout, LayoutHints, LayoutOutcome, Striping};

pub(crate) struct Gpfs;

impl Striping for Gpfs {
    fn read(&self, _runner: &dyn Runner, descriptor: BorrowedFd<'_>) -> Layout {
        let block_size = rustix::fs::fstatfs(descriptor).ok().map(|stat| stat.f_bsize as u64);
        Layout {
            fs_type: "gpfs".to_owned(),
            stripe_size_bytes: block_size,
            note: Some("blocks go over all disks of the storage pool in turn".to_owned()),
            ..Layout::default()
        }
    }

    fn apply(
        &self,
        _runner: &dyn Runner,
        _descriptor: BorrowedFd<'_>,
        _hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        Ok(LayoutOutcome::Ignored(
            "GPFS fixes the block size when the file system is made and stripes every file over \
             the whole pool; placement policies (mmchpolicy) choose the pool"
                .to_owned(),
        ))
    }
}
