//! The test whether a file is a stub: one rule for files that are reached by descriptor, by path
//! or through another layer.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{
    COPY_MAGIC, Mark, STUB_ATTRIBUTE, STUB_HEAD_BYTES, StubState, head_may_hold_mark,
    mark_of_attribute, mark_of_head,
};

/// What the marks of a file say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// An ordinary file.
    Nothing,
    /// A stub: its bytes are, or were, in the memory of a node.
    Stub(Mark),
    /// An ordinary file that another program wrote in the place of a stub, mark included.
    Remains,
    /// An ordinary file, all of whose bytes are there, durably; a node takes its attributes off at
    /// this moment, or ended in doing so.
    Finished,
    /// An ordinary file: a copy whose node has not said yet that what it took the place of was the
    /// stub. With its mark.
    Copy(Vec<u8>),
}

/// What came of asking for [`STUB_ATTRIBUTE`].
#[derive(Clone, Debug)]
pub enum Attribute<V> {
    /// The file has it, with this value.
    Value(V),
    /// The file does not have it, or the caller may not read it: no process makes a stub with a
    /// mark that it cannot read.
    Missing,
    /// The file system has no attributes.
    Unsupported,
}

/// Looks for the mark of a file of `size` bytes. `attribute` asks for [`STUB_ATTRIBUTE`], `head`
/// reads the first bytes of the file; the latter is called only where they can hold a mark.
pub fn find<V: AsRef<[u8]>, E>(
    size: u64,
    attribute: impl FnOnce() -> Result<Attribute<V>, E>,
    head: impl FnOnce(&mut [u8]) -> Result<usize, E>,
) -> Result<Found, E> {
    let attributes_work = match attribute()? {
        Attribute::Value(value) => {
            let value = value.as_ref();
            if value.starts_with(COPY_MAGIC.as_bytes()) {
                return Ok(Found::Copy(value.to_vec()));
            }
            if Mark::parse(value).is_some_and(|mark| mark.state == StubState::Finished) {
                return Ok(Found::Finished);
            }
            let mark = mark_of_attribute(value, size);
            return Ok(mark.map_or(Found::Remains, Found::Stub));
        }
        Attribute::Missing => true,
        Attribute::Unsupported => false,
    };
    if !head_may_hold_mark(size, attributes_work) {
        return Ok(Found::Nothing);
    }
    let mut bytes = [0; STUB_HEAD_BYTES];
    let read = head(&mut bytes)?;
    Ok(mark_of_head(&bytes[..read], size).map_or(Found::Nothing, Found::Stub))
}

/// Whether this is the answer of a file system without attributes.
pub fn is_without_attributes(error: Errno) -> bool {
    matches!(error, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY)
}

/// [`find()`] for an open file. A descriptor that cannot read the file cannot tell.
pub fn find_by_descriptor(file: impl AsFd, size: u64) -> Found {
    let asked = |value: &mut _| rustix::fs::fgetxattr(&file, STUB_ATTRIBUTE, value);
    find_or_nothing(size, asked, |head| read_head(&file, head))
}

/// [`find()`] for the file that a path leads to.
pub fn find_by_path(path: &Path, size: u64) -> Found {
    let asked = |value: &mut _| rustix::fs::getxattr(path, STUB_ATTRIBUTE, value);
    find_or_nothing(size, asked, |head| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(path, flags, Mode::empty());
        file.map_or(0, |file| read_head(file, head))
    })
}

/// Any mark of an open file, also where it makes no stub of it: one that another program left
/// when it wrote over a stub.
pub fn any_mark(file: impl AsFd) -> Option<Mark> {
    let mut value = [0; STUB_HEAD_BYTES];
    let length = rustix::fs::fgetxattr(&file, STUB_ATTRIBUTE, &mut value)
        .unwrap_or_else(|_| read_head(&file, &mut value));
    Mark::parse(&value[..length])
}

fn find_or_nothing(
    size: u64,
    asked: impl FnOnce(&mut [u8; STUB_HEAD_BYTES]) -> rustix::io::Result<usize>,
    head: impl FnOnce(&mut [u8]) -> usize,
) -> Found {
    let mut value = [0; STUB_HEAD_BYTES];
    let attribute = match asked(&mut value) {
        Ok(length) => Attribute::Value(&value[..length]),
        Err(error) if is_without_attributes(error) => Attribute::Unsupported,
        Err(_) => Attribute::Missing,
    };
    let found =
        find(size, || Ok::<_, std::convert::Infallible>(attribute), |bytes| Ok(head(bytes)));
    match found {
        Ok(found) => found,
    }
}

/// Reads until the buffer is full, the file ends or a read fails.
fn read_head(file: impl AsFd, head: &mut [u8]) -> usize {
    let mut filled = 0;
    while filled < head.len() {
        match rustix::io::pread(&file, &mut head[filled..], filled as u64) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(Errno::INTR) => {}
            // A mark that was read in part is none.
            Err(_) => return 0,
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::super::{STUB_BYTES, StubState};
    use super::*;

    fn mark() -> Mark {
        let (host, node, member) = ("host".into(), "n1".into(), "c1".into());
        Mark { length: 5, host, process_id: 7, node, member, copies: None, state: StubState::Held }
    }

    /// The test of a file with this attribute, and this content in place of the bytes of a file.
    fn found(size: u64, attribute: Attribute<String>, content: Option<&[u8]>) -> Found {
        let head = |bytes: &mut [u8]| {
            let content = content.expect("nothing says that it may hold a mark");
            bytes[..content.len()].copy_from_slice(content);
            Ok::<_, std::convert::Infallible>(content.len())
        };
        find(size, || Ok(attribute), head).unwrap()
    }

    #[test]
    fn the_attribute_goes_before_the_content() {
        let value = || Attribute::Value(mark().text());
        assert_eq!(found(0, value(), None), Found::Stub(mark()));
        assert_eq!(found(9, value(), None), Found::Remains);
        let content = mark().content();
        assert_eq!(found(STUB_BYTES, Attribute::Missing, Some(&content)), Found::Stub(mark()));
        assert_eq!(found(STUB_BYTES, Attribute::Missing, Some(b"text")), Found::Nothing);
        assert_eq!(found(9999, Attribute::Missing, None), Found::Nothing);
        assert_eq!(found(9999, Attribute::Unsupported, Some(&content)), Found::Nothing, "a copy");
    }
}
