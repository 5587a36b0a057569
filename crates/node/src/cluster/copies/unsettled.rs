//! Copies that were put in the place of a file by a node that then died: what they took the place
//! of may have been another program's file, which came there in the moment before. It would lie
//! beside it, under a name that nobody knows, and the old copy where it was.
//!
//! So a copy has a mark from before it is put in place until its node has seen that what came out
//! was the stub. Who finds the mark on a file looks for what came out, and puts it back. The mark
//! is sealed by the cluster's key: a user makes no node rename files.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::renameat;
use rustix::io::Errno;
use tidepool_cluster::FileKey;
use tidepool_pfs::LowerFile;
use tidepool_proto::stub::COPY_MAGIC;

use super::claim::{Taker, said};
use super::give_back::{LOOK_INTERVAL, SILENCE_MAX};
use super::pass::{fresh_name, is_settled, put_back};
use super::place::{Place, failed, key_of, leads_elsewhere};
use crate::cluster::Cluster;
use crate::cluster::beneath;
use crate::cluster::shared::Shared;
use crate::core::Core;
use crate::file::stub::{self, Found};

/// What the mark of a copy tells.
#[derive(Debug, PartialEq, Eq)]
struct CopyMark {
    /// Which node put it there, and which start of it.
    member: String,
    start: String,
    /// Name beside the file of what came out.
    beside: OsString,
    /// The file whose place it takes, and the time in memory that the copy is of.
    of: (FileKey, u64),
    /// The file with the copy.
    copy: FileKey,
}

impl CopyMark {
    /// Reads one that a node of the cluster wrote.
    fn parse(mark: &[u8], seal: &tidepool_peer::Seal) -> Option<Self> {
        let text = std::str::from_utf8(mark).ok()?;
        let (words, given) = text.rsplit_once(" seal=")?;
        let rest =
            words.strip_prefix(COPY_MAGIC).filter(|_| seal.is_of(words.as_bytes(), given))?;
        let word = |name: &str| {
            rest.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let number = |name| u64::from_str_radix(word(name)?, 16).ok();
        let file = |inode, born| Some(FileKey { inode: number(inode)?, generation: number(born)? });
        Some(CopyMark {
            member: word("member")?.to_owned(),
            start: word("node")?.to_owned(),
            beside: OsString::from(word("beside")?),
            of: (file("stub", "born")?, number("epoch")?),
            copy: file("copy", "copied")?,
        })
    }
}

impl Taker<'_> {
    /// The mark of a copy in the file `copy`, whose name is `beside`.
    pub(in crate::cluster) fn copy_mark(
        &self,
        copy: &File,
        beside: &OsStr,
        (file, epoch): (FileKey, u64),
    ) -> Result<Vec<u8>, String> {
        let copy = key_of(copy).map_err(failed("looking at the new file"))?;
        let (member, start, beside) = (self.me.0, self.me.1, beside.to_string_lossy());
        let [of, born, inode, copied] = [file.inode, file.generation, copy.inode, copy.generation];
        let words = format!(
            "{COPY_MAGIC} 1 member={member} node={start} beside={beside} epoch={epoch:x} \
             stub={of:x} born={born:x} copy={inode:x} copied={copied:x}"
        );
        Ok(format!("{words} seal={}", self.seal.of_words(words.as_bytes())).into_bytes())
    }

    /// Brings to an end what a node began that put `copy` at `place`.
    fn settle_copy(
        &self,
        place: &Place<'_>,
        copy: &dyn LowerFile,
        (mark, text): (&CopyMark, &[u8]),
    ) -> Result<(), String> {
        let out = place.beside(&fresh_name(mark.of))?;
        match renameat(&place.directory, &mark.beside, &place.directory, &out.name) {
            // It had come to the end, or somebody else did this.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("looking at what a copy took the place of")(errno)),
            Ok(()) => {
                let stub = out.open(mark.of.0)?;
                let is_stub = stub.map_or(Ok(false), |stub| is_settled(&*stub, mark.of.1))?;
                let is_copy = out.look(&out.name) == Some(mark.copy);
                match is_stub || is_copy {
                    true => out.remove(&out.name),
                    false => put_back(&out, &place.name, &|it| it == mark.copy)?,
                }
                place.sync()?;
            }
        }
        stub::settle_copy(copy, text).map_err(said)
    }
}

impl Cluster {
    /// Waits until it is settled what a copy that was opened took the place of, and settles it
    /// where nobody else does; whether another file is in that place now. The reason where it is
    /// not known yet.
    pub fn settle_copy(
        &self,
        core: &Core,
        text: &[u8],
        copy: &dyn LowerFile,
    ) -> Result<bool, String> {
        let file = Shared::named(&copy.version().map_err(said)?).file;
        // A mark that came with a copy of the file, or that a user made up, means nothing.
        let mark = CopyMark::parse(text, &self.seal).filter(|mark| mark.copy == file);
        let (Some(mark), Some(path)) = (mark, copy.relative_path()) else { return Ok(false) };
        let begun = Instant::now();
        while self.as_taker(core, |taker| (taker.is_there)(&mark.member, &mark.start)) {
            tidepool_pfs::asked::check().map_err(|error| error.to_string())?;
            let size = copy.version().map_err(said)?.size;
            if !matches!(stub::find(copy, size).map_err(said)?, Found::Copy(_)) {
                return Ok(leads_elsewhere(core, &path, file));
            }
            if self.is_stopping() {
                return Err(format!("`{}` is at it", mark.member));
            }
            // Its own try failed, or it stands still: it finds nothing of its own then.
            if begun.elapsed() > SILENCE_MAX {
                break;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        if let Some(place) = Place::find(core, &path)? {
            self.as_taker(core, |taker| taker.settle_copy(&place, copy, (&mark, text)))?;
        }
        Ok(leads_elsewhere(core, &path, file))
    }

    /// The same for the file that is at a path now, if it has the mark of a copy of this time in
    /// memory.
    pub(super) fn settle_copy_at(
        &self,
        core: &Core,
        of: (FileKey, u64),
        path: &Path,
    ) -> Result<(), String> {
        let Some(place) = Place::find(core, path)? else { return Ok(()) };
        let Ok(Some(found)) = beneath::regular_file(&place.directory, Path::new(&place.name))
        else {
            return Ok(());
        };
        let descriptor = beneath::reopen(&found).map_err(failed("opening a copy"))?;
        let copy: Arc<dyn LowerFile> = core.pfs.file(descriptor).map_err(said)?;
        let size = copy.version().map_err(said)?.size;
        let Found::Copy(text) = stub::find(&*copy, size).map_err(said)? else { return Ok(()) };
        let mark = CopyMark::parse(&text, &self.seal);
        let mark = mark.filter(|it| it.of == of && Ok(it.copy) == key_of(copy.descriptor()));
        let Some(mark) = mark else { return Ok(()) };
        self.as_taker(core, |taker| {
            // What this node began it does not go on with: one thread at a time is at a file.
            if mark.member != taker.me.0 && (taker.is_there)(&mark.member, &mark.start) {
                return Err(format!("`{}` puts its copy in its place", mark.member));
            }
            taker.settle_copy(&place, &*copy, (&mark, &text))
        })
    }
}

#[cfg(test)]
mod tests {
    use tidepool_peer::{Identity, Seal, SharedKey};

    use super::*;

    fn seal(byte: u8) -> Seal {
        let key = SharedKey::from_bytes(&[byte; 32]).unwrap();
        Seal::of(&Identity { cluster: "c".into(), node: "n1".into(), key, tls: None })
    }

    #[test]
    fn a_mark_is_read_as_it_was_written_and_only_if_a_node_wrote_it() {
        let (copy, ours) = (tempfile::tempfile().unwrap(), seal(1));
        let taker = Taker {
            me: ("n1", "start"),
            is_there: &|_, _| false,
            is_stuck: &|_, _, _| false,
            seal: &ours,
        };
        let of = (FileKey { inode: 9, generation: 1 << 63 }, 7);
        let beside = fresh_name(of);
        let text = taker.copy_mark(&copy, &beside, of).unwrap();
        let (member, start) = ("n1".to_owned(), "start".to_owned());
        let read = CopyMark::parse(&text, &ours);
        let copy = key_of(&copy).unwrap();
        assert_eq!(read, Some(CopyMark { member, start, beside, of, copy }));
        assert_eq!(CopyMark::parse(&text, &seal(2)), None, "another cluster's key");
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            assert_eq!(CopyMark::parse(&changed, &ours), None, "byte {at}");
        }
        assert!(text.len() < 512, "it fits beside other attributes");
    }
}
