//! Stubs: how a memory-only file looks on the parallel file system. Its mark is an extended
//! attribute, or its content where attributes are not supported. [`find()`] is the test for one.
//!
//! A mark says how long the file is and which node holds its bytes. While the node writes them back
//! the mark says so, and then the file is a stub whatever its length: a node that ends half way
//! leaves no file that looks whole. Otherwise it is one only while it has the length of a stub, so
//! that a file which another program wrote in its place is an ordinary one.

mod find;

pub use find::{
    Attribute, Found, any_mark, find, find_by_descriptor, find_by_path, is_without_attributes,
};

/// Extended attribute of a stub without content.
pub const STUB_ATTRIBUTE: &str = "user.tidepool.memory";
/// Extended attribute of a file whose mark was taken off by another one than its node: nobody
/// begins it in memory again, since who is slow at that would take the new mark off. Its value is
/// the number of the file, so that copies of the file are not such.
pub const PAST_ATTRIBUTE: &str = "user.tidepool.past";
/// Length in bytes of a stub that carries its mark as content.
pub const STUB_BYTES: u64 = 256;
/// Start of every mark.
pub const STUB_MAGIC: &str = "TIDEPOOL MEMORY-ONLY STUB";
/// Bytes from the start of a file in which marks are found.
pub const STUB_HEAD_BYTES: usize = 2 * STUB_BYTES as usize;

/// Start of the mark of a copy that is put in the place of a stub, in the same attribute. The file
/// is an ordinary one; what came out of the place is to be looked at.
pub const COPY_MAGIC: &str = "TIDEPOOL COPY";

/// What the holder does with a memory-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StubState {
    /// Keeps its bytes in memory; the file has the length of a stub.
    Held,
    /// Writes its bytes down; the file has any length, and whatever it holds is not to be read.
    Writing,
    /// Wrote them down, durably, and takes its attributes off, this mark last: the file is an
    /// ordinary one, whose time of change still moves.
    Finished,
}

/// Which other nodes hold a copy of a memory-only file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Names this time in memory among all of this and other files: a file that was written back
    /// and began anew has another one.
    pub epoch: u64,
    /// Names of the nodes among those of the cluster.
    pub holders: Vec<String>,
    /// A sync promised bytes of it, or is about to. Until then it is an empty file to others.
    pub is_promised: bool,
}

impl Copies {
    fn text(&self) -> String {
        let promised = if self.is_promised { ":synced" } else { "" };
        format!("{:016x}:{}{promised}", self.epoch, self.holders.join(","))
    }

    fn parse(text: &str) -> Option<Copies> {
        let mut parts = text.split(':');
        let epoch = u64::from_str_radix(parts.next()?, 16).ok()?;
        let holders: Vec<String> = parts.next()?.split(',').map(str::to_owned).collect();
        Some(Copies { epoch, holders, is_promised: parts.next() == Some("synced") })
    }
}

/// The attribute of a stub that stands for the right to put a copy in its place.
pub fn copy_attribute(epoch: u64) -> String {
    format!("user.tidepool.copy.{epoch:016x}")
}

/// The attribute by which one of several nodes gets that right, the first or a later one.
pub fn taken_attribute(epoch: u64, number: u32) -> String {
    format!("user.tidepool.taken.{epoch:016x}.{number}")
}

/// What a mark tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Length in bytes of the file that is in memory.
    pub length: u64,
    /// Host of the node.
    pub host: String,
    /// Process of the node.
    pub process_id: u32,
    /// Which start of a node: no two have the same.
    pub node: String,
    /// Its name among the nodes of its cluster; empty of one that stands alone.
    pub member: String,
    /// Who else has the bytes; `None` where nobody has.
    pub copies: Option<Copies>,
    /// What it does with the file.
    pub state: StubState,
}

impl Mark {
    /// Names this time in memory; `None` of a mark that does not say which node made it.
    pub fn epoch(&self) -> Option<u64> {
        let of_node = || u64::from_str_radix(self.node.get(..16)?, 16).ok();
        self.copies.as_ref().map(|copies| copies.epoch).or_else(of_node)
    }

    /// As it stands in the attribute.
    pub fn text(&self) -> String {
        let state = match self.state {
            StubState::Held => "held",
            StubState::Writing => "writing",
            StubState::Finished => "finished",
        };
        let Mark { length, host, process_id, node, member, .. } = self;
        let member = if member.is_empty() { String::new() } else { format!(" member={member}") };
        let copies = self
            .copies
            .as_ref()
            .map_or_else(String::new, |copies| format!(" copies={}", copies.text()));
        let holder = format!("node={node} pid={process_id}{member}{copies} holder={host}");
        format!("{STUB_MAGIC} 2 length={length} state={state} {holder}")
    }

    /// As it stands in the file where there are no attributes.
    pub fn content(&self) -> [u8; STUB_BYTES as usize] {
        let mut content = [b' '; STUB_BYTES as usize];
        let text = self.text();
        let length = text.len().min(content.len() - 1);
        content[..length].copy_from_slice(&text.as_bytes()[..length]);
        content[STUB_BYTES as usize - 1] = b'\n';
        content
    }

    /// Reads a mark; words that it lacks are empty. `None` if this is none.
    pub fn parse(bytes: &[u8]) -> Option<Mark> {
        let rest = bytes.strip_prefix(STUB_MAGIC.as_bytes())?;
        let text = String::from_utf8_lossy(rest);
        let word = |name: &str| {
            let mut words = text.split_ascii_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
        };
        Some(Mark {
            length: word("length").parse().unwrap_or(0),
            host: word("holder").into(),
            process_id: word("pid").parse().unwrap_or(0),
            node: word("node").into(),
            member: word("member").into(),
            copies: Copies::parse(word("copies")),
            state: match word("state") {
                "writing" => StubState::Writing,
                "finished" => StubState::Finished,
                _ => StubState::Held,
            },
        })
    }

    /// Whether it makes a stub of a file that is as long as a stub, or not.
    fn makes_stub(&self, is_of_its_length: bool) -> bool {
        match self.state {
            StubState::Held => is_of_its_length,
            StubState::Writing => true,
            StubState::Finished => false,
        }
    }
}

/// The mark of a file of `size` bytes whose attribute has this value, if that makes it a stub.
pub fn mark_of_attribute(value: &[u8], size: u64) -> Option<Mark> {
    Mark::parse(value).filter(|mark| mark.makes_stub(size == 0))
}

/// The mark of a file of `size` bytes that begins with `head`, if that makes it a stub.
///
/// A file shorter than a mark ends its writing back behind a second mark, which its last step cuts
/// off.
pub fn mark_of_head(head: &[u8], size: u64) -> Option<Mark> {
    let whole = STUB_BYTES as usize;
    let first = Mark::parse(&head[..head.len().min(whole)])
        .filter(|mark| mark.makes_stub(size == STUB_BYTES));
    let second = || {
        let behind = head.get(whole..).filter(|_| size == STUB_HEAD_BYTES as u64)?;
        Mark::parse(behind).filter(|mark| mark.state == StubState::Writing)
    };
    first.or_else(second)
}

/// Whether a file of `size` bytes is worth reading its head for a mark. Where attributes work, only
/// a mount without them on another machine can have left a mark there.
pub fn head_may_hold_mark(size: u64, attributes_work: bool) -> bool {
    match attributes_work {
        true => size == STUB_BYTES || size == STUB_HEAD_BYTES as u64,
        false => size >= STUB_BYTES,
    }
}

/// Whether a file of `size` bytes can be a stub of bytes that are held in memory, or one whose last
/// step of being written back is missing: what a list of files looks at more closely.
pub fn is_size_of_stub(size: u64) -> bool {
    size == 0 || head_may_hold_mark(size, true)
}

/// The length in bytes that a mark tells: that of the file which is in memory alone.
pub fn marked_length(mark: &[u8]) -> Option<u64> {
    Mark::parse(mark).map(|mark| mark.length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(state: StubState) -> Mark {
        Mark {
            length: 5,
            host: "host".into(),
            process_id: 7,
            node: "n1".into(),
            member: "c1".into(),
            copies: None,
            state,
        }
    }

    #[test]
    fn marks_are_read_as_they_were_written() {
        for state in [StubState::Held, StubState::Writing, StubState::Finished] {
            let mark = mark(state);
            assert_eq!(Mark::parse(mark.text().as_bytes()), Some(mark.clone()));
            assert_eq!(Mark::parse(&mark.content()), Some(mark));
        }
        let alone = Mark { member: String::new(), ..mark(StubState::Held) };
        assert!(!alone.text().contains("member"), "{}", alone.text());
        assert_eq!(Mark::parse(alone.text().as_bytes()), Some(alone));
        for is_promised in [false, true] {
            let holders = vec!["c2".into(), "c-3".into()];
            let copies = Some(Copies { epoch: 0xab, holders, is_promised });
            let copied = Mark { copies, ..mark(StubState::Held) };
            assert_eq!(Mark::parse(copied.text().as_bytes()), Some(copied));
        }
        let old = Mark::parse(b"TIDEPOOL MEMORY-ONLY STUB 1 length=12345 holder=h pid=1").unwrap();
        assert_eq!((old.length, old.state, old.node.as_str()), (12_345, StubState::Held, ""));
        let long = Mark { host: "h".repeat(400), ..mark(StubState::Writing) };
        let read = Mark::parse(&long.content()).unwrap();
        assert_eq!((read.node, read.state), (long.node, long.state), "a long name hides nothing");
        assert_eq!(Mark::parse(b"TIDEPOOL"), None);
    }

    #[test]
    fn a_mark_makes_a_stub_of_its_length_or_while_bytes_are_written_down() {
        let (held, writing) = (mark(StubState::Held), mark(StubState::Writing));
        let of_attribute = |mark: &Mark, size| mark_of_attribute(mark.text().as_bytes(), size);
        assert!(of_attribute(&held, 0).is_some() && of_attribute(&held, 9).is_none());
        assert!(of_attribute(&writing, 0).is_some() && of_attribute(&writing, 9).is_some());
        let finished = mark(StubState::Finished);
        assert!(of_attribute(&finished, 0).is_none() && of_attribute(&finished, 9).is_none());
        let of_head = |mark: &Mark, size| mark_of_head(&mark.content(), size);
        assert!(of_head(&held, STUB_BYTES).is_some() && of_head(&held, 1000).is_none());
        assert!(of_head(&writing, STUB_BYTES).is_some() && of_head(&writing, 1000).is_some());
        let mut ending = [b'D'; STUB_HEAD_BYTES];
        ending[STUB_BYTES as usize..].copy_from_slice(&writing.content());
        assert!(mark_of_head(&ending, STUB_HEAD_BYTES as u64).is_some());
        assert!(mark_of_head(&ending, 1000).is_none(), "a file that holds a copy of a stub");
        ending[STUB_BYTES as usize..].copy_from_slice(&held.content());
        assert!(mark_of_head(&ending, STUB_HEAD_BYTES as u64).is_none());
    }
}
