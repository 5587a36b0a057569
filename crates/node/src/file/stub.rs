//! Stubs of memory-only files on the PFS: how they are marked, found, and turned into the files
//! whose place they hold.
//!
//! Each step, if it is the last one, leaves a stub or the whole file behind, also where a failure
//! of power takes what was not synced: the mark says *writing*, durably, before the first byte is
//! written, and is removed after the last one is durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::Timestamps;
use tidepool_pfs::LowerFile;
pub use tidepool_proto::stub::Found;
use tidepool_proto::stub::{
    Mark, STUB_ATTRIBUTE, STUB_BYTES, StubState, copy_attribute, taken_attribute,
};
use tidepool_proto::{Error, Result, Version};

use super::cached_version::CachedVersion;
use super::copied::Copied;
use super::mark::{is_past, read_head, set_past};
use super::stub_errors::{
    begun_elsewhere, changed, finished_elsewhere, is_no_room_or_right, is_unsupported,
};
use super::stub_times::{StubTimes, times_of, were_set};

pub use super::mark::find;
pub use super::stub_errors::{Away, lost, lost_because};

/// Value of the attribute by which the node that wrote the file gets the right to finish it.
pub const OWNER_TAKES: &[u8] = b"owner";

/// Longest time from the moment when a mark goes to that when its file was looked at.
const UNMARKED_MAX: Duration = Duration::from_millis(20);
/// The same where a call to the PFS takes so long: so many of them, and no more than this.
const UNMARKED_CALLS: u32 = 8;
const UNMARKED_MAX_SLOW: Duration = Duration::from_millis(250);

/// Nodes that may get the right to finish a file, one after the other failed at it.
pub const TAKERS_MAX: u32 = 64;

/// Removes the mark of a whole file of which others have copies, and what those needed; when the
/// last step of that began. A mark of another time in memory stays.
///
/// The mark goes last, and says so before: from then on the file is no stub, and nobody finds a
/// right to take; who opens it waits until it has the time of change that it keeps.
fn remove_marks(lower: &dyn LowerFile, epoch: u64) -> Result<Instant> {
    let is_of_epoch = |mark: &Mark| mark.epoch() == Some(epoch);
    if let Some(mark) = mark_of(lower)?.filter(is_of_epoch) {
        let finished = Mark { state: StubState::Finished, ..mark };
        lower.set_xattr_if(STUB_ATTRIBUTE, finished.text().as_bytes(), true)?;
    }
    forget_epoch(lower, epoch)?;
    let is_there = epoch_of(lower)? == Some(epoch);
    let begun = Instant::now();
    if is_there {
        lower.remove_xattr(STUB_ATTRIBUTE)?;
    }
    Ok(begun)
}

/// Removes what copies of a time in memory needed. In this order: who comes late finds no right to
/// take.
pub fn forget_epoch(lower: &dyn LowerFile, epoch: u64) -> Result<()> {
    lower.remove_xattr(&copy_attribute(epoch))?;
    for number in 1..=TAKERS_MAX {
        let name = taken_attribute(epoch, number);
        if lower.get_xattr(&name)?.is_none() {
            break;
        }
        lower.remove_xattr(&name)?;
    }
    Ok(())
}

/// By which number the node that had the file took the right to finish it, if it did: all bytes are
/// there then, durably.
pub fn number_of_owner(lower: &dyn LowerFile, epoch: u64) -> Result<Option<u32>> {
    for number in 1..=TAKERS_MAX {
        match lower.get_xattr(&taken_attribute(epoch, number))? {
            Some(value) if value == OWNER_TAKES => return Ok(Some(number)),
            Some(_) => {}
            None => break,
        }
    }
    Ok(None)
}

/// Ends what a node did not that took the right to finish its file.
pub fn finish(lower: &dyn LowerFile, epoch: u64) -> Result<()> {
    if epoch_of(lower)? == Some(epoch) {
        set_past(lower)?;
    }
    remove_marks(lower, epoch)?;
    lower.sync(false)
}

/// Takes the mark of a copy off that is in the place of a stub.
pub fn settle_copy(lower: &dyn LowerFile, mark: &[u8]) -> Result<()> {
    let is_there = || Ok::<_, Error>(lower.get_xattr(STUB_ATTRIBUTE)?.as_deref() == Some(mark));
    if is_there()? {
        set_past(lower)?;
    }
    if is_there()? {
        lower.remove_xattr(STUB_ATTRIBUTE)?;
    }
    Ok(())
}

/// Makes a stub, or what is left of one, an empty ordinary file. Its node must be known to be gone:
/// where it goes on it may write over what comes next.
pub fn clear(lower: &dyn LowerFile) -> Result<()> {
    // In this order: what has a mark is no file that was emptied by its writer.
    lower.set_size(0)?;
    clear_remains(lower)
}

/// Takes the mark off an ordinary file that another program wrote in the place of a stub, with what
/// copies needed.
pub fn clear_remains(lower: &dyn LowerFile) -> Result<()> {
    let Some(epoch) = epoch_of(lower)? else { return remove_attribute(lower) };
    set_past(lower)?;
    remove_marks(lower, epoch).map(drop)
}

/// The same where the file is one, and else nothing.
pub fn clear_if_remains(lower: &dyn LowerFile) -> Result<()> {
    match find(lower, lower.version()?.size)? {
        Found::Remains | Found::Finished => clear_remains(lower),
        Found::Nothing | Found::Stub(_) | Found::Copy(_) => Ok(()),
    }
}

/// What the time in memory is called whose mark a file has as an attribute.
fn epoch_of(lower: &dyn LowerFile) -> Result<Option<u64>> {
    Ok(mark_of(lower)?.and_then(|mark| mark.epoch()))
}

/// The mark that a file has as an attribute, whatever it makes of it.
fn mark_of(lower: &dyn LowerFile) -> Result<Option<Mark>> {
    match lower.get_xattr(STUB_ATTRIBUTE) {
        Ok(value) => Ok(value.and_then(|value| Mark::parse(&value))),
        Err(error) if is_unsupported(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the time in memory of a stub is called, where nodes can settle who finishes it: it has
/// attributes.
pub fn epoch_to_settle(lower: &dyn LowerFile, mark: &Mark) -> Result<Option<u64>> {
    Ok(epoch_of(lower)?.filter(|epoch| mark.epoch() == Some(*epoch)))
}

/// Whether another node put an empty file in the place of a stub of which there are no copies.
pub fn was_emptied(lower: &dyn LowerFile, mark: &Mark) -> Result<bool> {
    let facts = rustix::fs::fstat(lower.descriptor());
    let has_name = facts.is_ok_and(|facts| facts.st_nlink > 0);
    let (false, Some(epoch)) = (has_name, mark.epoch()) else { return Ok(false) };
    Ok(lower.get_xattr(&taken_attribute(epoch, 1))?.is_some())
}

/// Whether a file is still the stub of this time in memory: nobody wrote to it, or emptied it.
pub fn is_of_epoch(lower: &dyn LowerFile, epoch: u64) -> Result<bool> {
    let size = lower.version()?.size;
    let Found::Stub(mark) = find(lower, size)? else { return Ok(false) };
    if lower.version()?.size != size {
        return Ok(false); // in this moment
    }
    let is_its_own = mark.state == StubState::Held || size == 0 || size == mark.length;
    Ok(is_its_own && mark.epoch() == Some(epoch))
}

fn remove_attribute(lower: &dyn LowerFile) -> Result<()> {
    match lower.remove_xattr(STUB_ATTRIBUTE) {
        Err(error) if is_unsupported(&error) => Ok(()),
        other => other,
    }
}

/// Where the mark of a stub is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// An extended attribute of an empty file.
    Attribute,
    /// The first bytes of the file.
    Head,
}

/// What changes of a stub while it lasts.
#[derive(Default)]
struct Progress {
    /// Length that the mark tells.
    marked_length: Option<u64>,
    /// The mark and the name are durable.
    durable: bool,
    /// The times that the file is to have when it was written back.
    times: Option<Timestamps>,
    /// Of a stub whose state is not known: it was cut to its length, so another length is that of
    /// another program's file.
    is_cut: bool,
    /// The version that it had when all bytes were written back, and no other program knew of them;
    /// `None` where that cannot be told.
    whole: Option<Version>,
    /// The version that it had right after its mark went, if it was seen in time.
    unmarked: Option<Version>,
    /// It was seen that nobody took the right to finish the file since the mark says that bytes are
    /// promised: whoever gets it later knows.
    is_promised: bool,
    /// This node took the right to finish the file, and no holder of a copy has it any more.
    is_taken: bool,
}

/// Sets an attribute of a new file; false where the PFS does not take it, or says of a second one
/// that it set it too: several nodes would then get one right.
fn gives_rights_once(lower: &dyn LowerFile, name: &str) -> Result<bool> {
    let set = lower.set_xattr_if(name, b"", false).and_then(|is_first| {
        let is_second = lower.set_xattr_if(name, b"", false)?;
        Ok(is_first && !is_second)
    });
    match set {
        Err(error) if is_unsupported(&error) || is_no_room_or_right(&error) => Ok(false),
        other => other,
    }
}

/// A mark with what it says of copies.
fn with_copies(mark: &Mark, copied: Option<&Copied>) -> Mark {
    Mark { copies: copied.map(Copied::told), ..mark.clone() }
}

/// A stub of this node.
#[derive(Clone)]
pub struct Stub {
    lower: Arc<dyn LowerFile>,
    place: Place,
    progress: Arc<Mutex<Progress>>,
    /// A failing PFS left it in an unknown state.
    unsure: Arc<AtomicBool>,
    /// What other nodes have of the file.
    copied: Option<Arc<Copied>>,
    /// When it was changed last.
    pub(super) times: Arc<StubTimes>,
}

/// Writes the bytes of the file behind the first `u64` bytes.
pub type WriteBytes<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// What is to be done once the mark is off.
pub type Afterwards<'a> = Box<dyn FnOnce() + 'a>;

/// Gets the right to finish a file of which there are copies: see `cluster::copies::claim`. `Lost`
/// where a copy took its place.
pub type TakeRight<'a> = dyn Fn(&Copied) -> Result<Afterwards<'a>> + 'a;

impl Stub {
    /// Marks an empty file, of which other nodes are to have copies or not. `None` where it takes
    /// no mark: then it stays an ordinary file.
    pub fn make(
        lower: &Arc<dyn LowerFile>,
        mark: &Mark,
        copied: Option<Arc<Copied>>,
    ) -> Result<Option<Stub>> {
        let mark = &with_copies(mark, copied.as_deref());
        if is_past(&**lower)? {
            return Ok(None);
        }
        if let Some(copies) = &mark.copies
            && !gives_rights_once(&**lower, &copy_attribute(copies.epoch))?
        {
            return Ok(None);
        }
        let times = Arc::new(StubTimes::new(&lower.version()?));
        let made = |place| {
            let progress = Progress { marked_length: Some(mark.length), ..Progress::default() };
            Some(Stub {
                lower: lower.clone(),
                place,
                progress: Arc::new(Mutex::new(progress)),
                unsure: Arc::default(),
                copied: copied.clone(),
                times: times.clone(),
            })
        };
        match lower.set_xattr_if(STUB_ATTRIBUTE, mark.text().as_bytes(), false) {
            // Another node began it meanwhile: its bytes are there.
            Ok(false) => {
                if let Some(copies) = &mark.copies {
                    lower.remove_xattr(&copy_attribute(copies.epoch))?;
                }
                Err(begun_elsewhere())
            }
            // Some file systems take attributes and do not keep them.
            Ok(true) => match find(&**lower, 0)? {
                Found::Stub(found) if found.node == mark.node => Ok(made(Place::Attribute)),
                _ => remove_attribute(&**lower).map(|()| None),
            },
            Err(error) if is_unsupported(&error) => {
                lower.write_at(0, &mark.content())?;
                match find(&**lower, STUB_BYTES)? {
                    Found::Stub(found) if found.node == mark.node => Ok(made(Place::Head)),
                    _ => lower.set_size(0).map(|()| None),
                }
            }
            Err(error) if is_no_room_or_right(&error) => {
                tracing::debug!(%error, "a file is not kept in memory only: it takes no mark");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// What other nodes have of the file; `None` where they have nothing.
    pub fn copied(&self) -> Option<&Arc<Copied>> {
        self.copied.as_ref()
    }

    /// The descriptor by which it was made.
    pub fn lower(&self) -> &Arc<dyn LowerFile> {
        &self.lower
    }

    /// Whether the file has several names, as far as the PFS tells.
    pub fn has_names(&self) -> bool {
        rustix::fs::fstat(self.lower.descriptor()).is_ok_and(|facts| facts.st_nlink > 1)
    }

    /// Length of the stub on the PFS while its bytes are in memory.
    pub fn size(&self) -> u64 {
        match self.place {
            Place::Attribute => 0,
            Place::Head => STUB_BYTES,
        }
    }

    fn set_mark(&self, mark: &Mark) -> Result<()> {
        let mark = with_copies(mark, self.copied.as_deref());
        match self.place {
            Place::Attribute => self.lower.set_xattr(STUB_ATTRIBUTE, mark.text().as_bytes()),
            Place::Head => self.lower.write_at(0, &mark.content()),
        }
    }

    /// Whether the file, seen at `now`, is still this stub: nobody wrote to it. Times may have
    /// been set, by any program: they are not those of the bytes.
    pub fn is_at(&self, lower: &dyn LowerFile, now: &Version, mark: &Mark) -> Result<bool> {
        let Found::Stub(found) = find(lower, now.size)? else { return Ok(false) };
        if self.unsure.load(Ordering::Acquire) {
            let is_cut = self.progress.lock().is_cut;
            if found.node != mark.node || is_cut && now.size != self.size() {
                return Ok(false);
            }
            if self.back(mark).is_ok() {
                return Ok(true);
            }
        }
        let is_held = found.state == StubState::Held;
        Ok(found.node == mark.node
            && (!is_held || now.size == self.size() && self.is_untouched(lower, mark)?))
    }

    /// Whether its content, where that is the mark, is what this node wrote.
    fn is_untouched(&self, lower: &dyn LowerFile, mark: &Mark) -> Result<bool> {
        let marked_length = self.progress.lock().marked_length;
        let (Place::Head, Some(length)) = (self.place, marked_length) else { return Ok(true) };
        let mut there = [0; STUB_BYTES as usize];
        let read = read_head(lower, &mut there)?;
        Ok(there[..read] == Mark { length, ..mark.clone() }.content())
    }

    /// Tells the length, and makes stub and name durable the first time: from then on a file that
    /// lost its bytes says so.
    pub fn record(&self, mark: &Mark) -> Result<()> {
        let mut progress = self.progress.lock();
        let is_first = self.copied.as_ref().is_some_and(|copied| copied.promise());
        if is_first || progress.marked_length != Some(mark.length) {
            progress.marked_length = None;
            self.set_mark(mark)?;
            progress.marked_length = Some(mark.length);
        }
        if let Some(copied) = &self.copied
            && !progress.is_promised
        {
            let taken = self.lower.get_xattr(&taken_attribute(copied.copies.epoch, 1))?;
            if taken.is_some_and(|taken| taken != OWNER_TAKES) {
                return Err(finished_elsewhere());
            }
            progress.is_promised = true;
        }
        if !progress.durable {
            self.lower.sync(false)?;
            self.lower.sync_directory_entry()?;
            progress.durable = true;
        }
        Ok(())
    }

    /// Tells a length that is shorter than what the mark tells; whether the mark was changed. What
    /// a failing PFS left of the stub is told by nobody until it is whole again.
    pub fn shorten(&self, mark: &Mark) -> Result<bool> {
        let mut progress = self.progress.lock();
        if progress.marked_length.is_none_or(|told| told <= mark.length) {
            return Ok(false);
        }
        self.set_mark(mark)?;
        progress.marked_length = Some(mark.length);
        Ok(true)
    }

    /// Turns the stub into the file of `mark.length` bytes whose first bytes are `head`; `rest`
    /// writes those behind them. After an error [`Stub::restore`] says what became of it.
    pub fn write_back(
        &self,
        mark: &Mark,
        head: &[u8],
        rest: &mut WriteBytes<'_>,
        take: &TakeRight<'_>,
    ) -> Result<()> {
        let (lower, size) = (&*self.lower, mark.length);
        let writing = Mark { state: StubState::Writing, ..mark.clone() };
        {
            let mut progress = self.progress.lock();
            (progress.is_cut, progress.whole, progress.unmarked) = (false, None, None);
        }
        if self.place == Place::Attribute {
            self.times.bring_up_to_date(lower, &lower.version()?)?;
        }
        if size > 0 {
            self.set_mark(&writing)?;
            self.progress.lock().marked_length = None;
            lower.sync(false)?;
        } else if self.copied.is_some() {
            // So that whoever finds the mark takes it off, should that fail here.
            self.set_mark(&writing)?;
            self.progress.lock().marked_length = None;
        }
        match self.place {
            Place::Attribute => {
                self.progress.lock().times = Some(times_of(lower)?);
                // What an earlier try left goes, because holes are not written.
                if lower.version()?.size > 0 {
                    self.set_length(0)?;
                }
                self.set_length(size)?;
                rest(0)?;
                self.set_times();
                lower.sync(false)?;
                self.finish_own(&writing, take)?;
            }
            Place::Head if size >= STUB_BYTES => {
                lower.set_size(STUB_BYTES)?;
                lower.set_size(size)?;
                rest(STUB_BYTES)?;
                lower.sync(false)?;
                lower.write_at(0, &head[..STUB_BYTES as usize])?;
            }
            Place::Head => {
                if size > 0 {
                    lower.write_at(STUB_BYTES, &writing.content())?;
                    lower.sync(false)?;
                    lower.write_at(0, head)?;
                    lower.sync(false)?;
                }
                lower.set_size(size)?;
            }
        }
        lower.sync(false)?;
        lower.sync_directory_entry()
    }

    /// A program set the times of the file while it is written back; `None`: it wrote to it.
    pub fn note_times(&self, times: Option<Timestamps>) {
        if self.place == Place::Attribute {
            self.progress.lock().times = times;
        }
    }

    /// Changes its length; times that a program set right after that stay.
    fn set_length(&self, size: u64) -> Result<()> {
        self.lower.set_size(size)?;
        if were_set(&self.lower.version()?) {
            self.note_times(Some(times_of(&*self.lower)?));
        }
        Ok(())
    }

    /// The file is about to be changed in memory.
    pub fn note_change(&self, cached: &CachedVersion) {
        let is_read_elsewhere =
            self.copied.as_ref().is_some_and(|copied| copied.given_token().is_some());
        self.times.note_change(&cached.version(), is_read_elsewhere);
    }

    /// The time of change that the file gets once it was written back, where that is not the time
    /// of its last byte.
    pub fn kept_ns(&self) -> Option<i128> {
        let progress = self.progress.lock();
        progress.times.as_ref().map(|times| {
            let time = &times.last_modification;
            i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
        })
    }

    /// Sets the times that the file had before its bytes were written.
    fn set_times(&self) {
        if let Some(times) = &self.progress.lock().times {
            // Not every user may; the bytes are what counts.
            let _ = rustix::fs::futimens(self.lower.descriptor(), times);
        }
    }

    /// The version that the file had when all bytes were written back, before its mark went.
    pub fn whole(&self) -> Option<Version> {
        self.progress.lock().whole
    }

    /// Takes the mark off: its bytes are durable. Where there are copies, with the right to do so,
    /// for good: from then on no holder puts one in its place, and whoever finds the mark may take
    /// it off.
    fn finish_own(&self, writing: &Mark, take: &TakeRight<'_>) -> Result<()> {
        let lower = &*self.lower;
        let asked = Instant::now();
        let whole = lower.version()?;
        let call = asked.elapsed();
        let Found::Stub(found) = find(lower, whole.size)? else { return Err(changed()) };
        if found.node != writing.node || whole.size != writing.length {
            return Err(changed());
        }
        self.progress.lock().whole = Some(whole);
        let Some(copied) = &self.copied else {
            let begun = Instant::now();
            lower.remove_xattr(STUB_ATTRIBUTE)?;
            self.note_unmarked(begun, call);
            return Ok(());
        };
        let afterwards = take(copied).inspect_err(|_| {
            // The PFS may fail a call that it carried out.
            let number = number_of_owner(lower, copied.copies.epoch);
            self.progress.lock().is_taken = number.is_ok_and(|number| number.is_some());
        })?;
        self.progress.lock().is_taken = true;
        let begun = remove_marks(lower, copied.copies.epoch)?;
        self.note_unmarked(begun, call);
        afterwards();
        Ok(())
    }

    /// Notes the version that the file has without its mark, unless that took longer than its calls
    /// to the PFS, one of which took `call`: another program may have written to it,
    /// and set its times back.
    fn note_unmarked(&self, begun: Instant, call: Duration) {
        let now = self.lower.version().ok();
        let limit = (UNMARKED_CALLS * call).clamp(UNMARKED_MAX, UNMARKED_MAX_SLOW);
        self.progress.lock().unmarked = now.filter(|_| begun.elapsed() < limit);
    }

    /// The version that the file had right after its mark went; `None` where that is not known.
    pub fn unmarked(&self) -> Option<Version> {
        self.progress.lock().unmarked
    }

    /// Makes it a stub again after it could not be written back. False where it is the whole file
    /// by now, and no mark can be had any more.
    pub fn restore(&self, mark: &Mark) -> bool {
        if self.progress.lock().is_taken {
            // Whoever finds the mark takes it off: the bytes stay where they are.
            return false;
        }
        let Err(error) = self.back(mark) else { return true };
        let size = self.lower.version().map(|now| now.size);
        let found = size.and_then(|size| find(&*self.lower, size));
        // The error is logged where failures are counted.
        tracing::debug!(%error, ?found, "a memory-only file that could not be written back");
        let is_whole = matches!(found, Ok(Found::Nothing));
        self.unsure.store(!is_whole, Ordering::Release);
        !is_whole
    }

    fn back(&self, mark: &Mark) -> Result<()> {
        if self.place == Place::Attribute && self.lower.get_xattr(STUB_ATTRIBUTE)?.is_none() {
            return Err(changed()); // another one took it off: the file is not ours any more
        }
        self.set_mark(&Mark { state: StubState::Writing, ..mark.clone() })?;
        self.progress.lock().marked_length = None;
        self.lower.set_size(self.size())?;
        self.set_times();
        self.progress.lock().is_cut = true;
        // A mark that says *held* makes a stub of its own length only.
        self.lower.sync(false)?;
        self.set_mark(&Mark { state: StubState::Held, ..mark.clone() })?;
        self.progress.lock().marked_length = Some(mark.length);
        self.unsure.store(false, Ordering::Release);
        Ok(())
    }
}
