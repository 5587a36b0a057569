//! Keeping written bytes: what goes to the PFS also goes to the store, so that it is warm when it
//! is read back.
//!
//! Files start in a buffer while they could still be packed as small ones, and move to a segment
//! when they outgrow it. Bytes are captured only after the PFS took them, and only whole blocks or
//! bytes of resident blocks: a block is never half known.

use std::sync::Arc;

use tidepool_proto::Result;
use tidepool_proto::table::BlockState;
use tidepool_store::{FillStart, Segment, Store};

use super::content::Content;

/// Where the bytes of a file being written are kept.
#[derive(Debug, Default)]
pub enum Capture {
    /// Nowhere: the file was not seen from its start.
    #[default]
    Off,
    /// Here, because it may end up small: all bytes from the start of the file.
    Buffer(Vec<u8>),
}

/// A write that the PFS has taken.
pub struct Written<'a> {
    /// First byte.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Length of the file before.
    pub size_before: u64,
}

impl Written<'_> {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    fn size_after(&self) -> u64 {
        self.size_before.max(self.end())
    }
}

impl Capture {
    /// Keeps `written`. `keep_new` is false in write mode `bypass`: then only what is resident
    /// already is brought up to date.
    pub fn keep(
        &mut self,
        store: &Arc<Store>,
        content: &Content,
        written: &Written<'_>,
        small_bytes_max: u64,
        keep_new: bool,
    ) -> Result<()> {
        if content.segment().is_none() {
            store.remove_small(content.id());
            if !keep_new || !content.admit {
                *self = Capture::Off;
                return Ok(());
            }
            if written.size_after() <= small_bytes_max {
                self.buffer(written);
                return Ok(());
            }
            content.set_size(written.size_after());
            let segment = content.segment_or_create(store)?;
            if let Capture::Buffer(bytes) = std::mem::take(self) {
                let whole = bytes.len() as u64 == written.size_before;
                let start = Written { offset: 0, data: &bytes, size_before: 0 };
                if whole && !bytes.is_empty() {
                    into_segment(segment, &start, true)?;
                }
            }
            return into_segment(segment, written, true);
        }
        let segment = content.segment_or_create(store)?;
        into_segment(segment, written, keep_new && content.admit)
    }

    /// Extends or patches the buffer; gives up where that would leave a gap.
    fn buffer(&mut self, written: &Written<'_>) {
        if written.size_before == 0 && matches!(self, Capture::Off) {
            *self = Capture::Buffer(Vec::new());
        }
        let Capture::Buffer(bytes) = self else { return };
        if bytes.len() as u64 != written.size_before {
            *self = Capture::Off;
            return;
        }
        let end = written.end() as usize;
        if end > bytes.len() {
            // A gap after the old end is a hole, and holes read as zeros.
            bytes.resize(end, 0);
        }
        bytes[written.offset as usize..end].copy_from_slice(written.data);
    }

    /// Follows a change of the file's length to `size`.
    pub fn set_size(&mut self, store: &Store, content: &Content, size: u64) -> Result<()> {
        store.remove_small(content.id());
        match self {
            Capture::Buffer(bytes) => match usize::try_from(size) {
                Ok(size) if size <= bytes.len() => bytes.truncate(size),
                _ => *self = Capture::Off,
            },
            Capture::Off if size == 0 && content.segment().is_none() => {
                *self = Capture::Buffer(Vec::new());
            }
            Capture::Off => {}
        }
        match content.segment() {
            Some(segment) => segment.set_size(size),
            None => Ok(()),
        }
    }

    /// Packs the buffer as a small file of the content's version.
    pub fn pack(&self, store: &Store, content: &Content) -> Result<()> {
        let Capture::Buffer(bytes) = self else { return Ok(()) };
        let version = content.version();
        let whole = bytes.len() as u64 == version.size && content.segment().is_none();
        if whole && !content.is_unsettled() && !bytes.is_empty() {
            store.insert_small(version.id, version, content.owner, bytes)?;
        }
        Ok(())
    }
}

/// Patches resident blocks and fills those that `written` covers up to the end of the file.
fn into_segment(segment: &Segment, written: &Written<'_>, keep_new: bool) -> Result<()> {
    let size_after = written.size_after();
    if size_after > segment.size() {
        segment.set_size(size_after)?;
    }
    let block_bytes = segment.block_bytes();
    let mut at = written.offset;
    while at < written.end() {
        let block = at / block_bytes;
        let (start, stop) = (block * block_bytes, ((block + 1) * block_bytes).min(size_after));
        let upto = stop.min(written.end());
        let part = &written.data[(at - written.offset) as usize..(upto - written.offset) as usize];
        if segment.state(block) != BlockState::Absent {
            segment.write_resident(at, part);
        } else if keep_new
            && at == start
            && upto == stop
            && let FillStart::Started(mut fill) = segment.begin_fill(block)
        {
            fill[..part.len()].copy_from_slice(part);
            fill.commit(BlockState::Clean);
        }
        at = upto;
    }
    Ok(())
}
