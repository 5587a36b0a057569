//! Opens: which cached version a new handle reads, and which files are refused.

mod owed;
mod recalled;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tidepool_pfs::{LowerFile, asked};
use tidepool_proto::config::DirectoryRule;
use tidepool_proto::stub::Mark;
use tidepool_proto::{Access, Error, ErrorKind, OpenRequest, ReadMode, Result, Version};
use tidepool_store::Owner;

use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::handle::{Handle, Opened};
use crate::file::memory_only;
use crate::file::state::{FileState, Inner, OpenLower, Remains};
use crate::file::stub::{self, Found};
use crate::metadata_change::NotificationWait;
use crate::node::Node;
use crate::striping;

use recalled::recalled;

/// How long a node may take for the last steps of a file that it wrote back, how often it is looked
/// for, and until how long after its last change a file may be such.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
const FINISH_INTERVAL: Duration = Duration::from_millis(2);
const FRESH: Duration = Duration::from_secs(10);

/// What an open needs to know before it looks at what is cached.
struct Wish {
    access: Access,
    terms: CacheTerms,
    created: bool,
    truncate: bool,
    /// It may read what another node has not brought to the PFS yet.
    may_read_owed: bool,
}

/// What a look for the mark of a stub led to.
enum Checked {
    /// The file has its bytes on the PFS, at this version.
    At(Version),
    /// Another node owes them.
    Owed(Arc<CachedVersion>),
}

/// On which terms a file is cached: whom the store charges, and whether it may be kept at all.
#[derive(Clone, Copy)]
pub(crate) struct CacheTerms {
    owner: Owner,
    admit: bool,
}

impl CacheTerms {
    /// Those of an open by this user, of a file under this rule.
    pub(crate) fn of(core: &Core, rule: Option<(usize, &DirectoryRule)>, user_id: u32) -> Self {
        let admit = rule.is_none_or(|(_, rule)| rule.admit) && core.promise.now().may_cache();
        CacheTerms { owner: core.owner(rule, user_id), admit }
    }
}

/// Which cached version a file had, and of which version.
type Seen = Option<(u64, Version)>;

fn seen(inner: &Inner) -> Seen {
    inner.cached.as_ref().map(|cached| (cached.number, cached.version()))
}

fn is_at(cached: &Option<Arc<CachedVersion>>, version: &Version) -> bool {
    cached.as_ref().is_some_and(|cached| cached.version().agrees_with(version))
}

impl Node {
    /// The cached version that an open reads: the one that is there if it is of the present version
    /// and can be used (not racy), a fresh one otherwise. Also whether the kernel writes the file
    /// now.
    fn cached_version_at(
        &self,
        file: &Arc<FileState>,
        lower: &Arc<dyn LowerFile>,
        wish: &Wish,
    ) -> Result<(Arc<CachedVersion>, bool)> {
        // Invariant 1 of `file`: the version seen is the recorded one or another program's.
        let unchanged_by_us = file.share_gate();
        let (core, notification) = (&self.core, NotificationWait::begin());
        let mut asked = None;
        loop {
            // The PFS is asked before the lock is taken: walks over all files take it too.
            let (before, current, has_users) = {
                let inner = file.inner.lock();
                (seen(&inner), inner.cached.clone(), inner.handles > 0)
            };
            let known = asked.filter(|version| is_at(&current, version));
            let mut version = known.map_or_else(|| lower.version(), Ok)?;
            asked = Some(version);
            if has_users
                && current.as_ref().is_some_and(|known| notification.is_for(known, &version))
            {
                notification.pause();
                continue; // opens that have it would be shut out
            }
            let is_ours = match &current {
                Some(cached) if cached.is_memory_only() => {
                    memory_only::is_still_ours(core, &unchanged_by_us, cached, &**lower, &version)?
                }
                _ => false,
            };
            if !is_ours {
                version = match self.check_stub(file, lower, wish, version)? {
                    Checked::At(version) => version,
                    Checked::Owed(cached) => {
                        register(&mut file.inner.lock(), wish.access);
                        return Ok((cached, false));
                    }
                };
                if wish.access.writes() {
                    self.settle_owed(&version);
                }
            }
            let inner = file.inner.lock();
            let after = seen(&inner);
            let same_content = before.map(|(number, _)| number) == after.map(|(number, _)| number);
            if !(same_content && (is_ours || before == after)) {
                continue; // another open or a notification came in between
            }
            return Ok(self.take_up(file, inner, wish, (version, is_ours)));
        }
    }

    /// Registers an open that reads the file at `version`: what is cached of it, or a fresh one.
    fn take_up(
        &self,
        file: &FileState,
        mut inner: MutexGuard<'_, Inner>,
        wish: &Wish,
        (version, is_ours): (Version, bool),
    ) -> (Arc<CachedVersion>, bool) {
        let core = &self.core;
        let old = inner.cached.clone();
        // Nobody is known to have changed it.
        let is_led_on = old
            .as_ref()
            .is_some_and(|old| !old.is_invalidated() && old.version().agrees_with(&version));
        let mut remains = Remains::none();
        if let Some(cached) = &old {
            let is_anothers = is_left_of_another(cached, wish.terms.owner, &inner);
            if is_ours || (is_usable(cached, &version, &inner) && !is_anothers) {
                register(&mut inner, wish.access);
                return (cached.clone(), inner.written_directly);
            }
            memory_only::note_replaced(file, cached);
            core.counters.versions_invalidated.add((!is_anothers).into());
            core.invalidate(cached);
            remains = memory_only::discard(core, &mut inner);
        }
        let beside_writer = inner.writers > 0 && !inner.written_directly;
        let is_shared = old.is_some() && beside_writer;
        let cached = new_cached_version(&mut inner, wish.terms, version, is_shared);
        if let Some(old) = old.filter(|_| is_led_on) {
            old.lead_to(&cached);
        }
        register(&mut inner, wish.access);
        let written_directly = inner.written_directly;
        drop(inner);
        remains.free();
        (cached, written_directly)
    }

    /// Refuses stubs of bytes that are not here, unless the open empties the file; tells which
    /// version the file has then, or who owes it.
    fn check_stub(
        &self,
        file: &Arc<FileState>,
        lower: &Arc<dyn LowerFile>,
        wish: &Wish,
        version: Version,
    ) -> Result<Checked> {
        let writes = wish.access.writes();
        if wish.created || self.is_known(file, &version) {
            return Ok(Checked::At(version));
        }
        match stub::find(&**lower, version.size)? {
            Found::Nothing => return self.unmarked(file, lower, wish, version),
            Found::Finished if wait_until_finished(&**lower)? => {
                return self.check_stub(file, lower, wish, lower.version()?);
            }
            Found::Copy(copy) => {
                let cluster = self.core.cluster();
                let settled = cluster.map_or(Ok(false), |cluster| {
                    asked::while_another_node_works(|| {
                        cluster.settle_copy(&self.core, &copy, &**lower)
                    })
                });
                let name = || memory_only::name_of(&**lower);
                return match settled {
                    Ok(false) => lower.version().map(Checked::At),
                    Ok(true) => Err(replaced(&name())),
                    Err(reason) => Err(unsettled(&name(), reason)),
                };
            }
            // Also for a reader: there may be writers that opened before. A reader may lack the
            // right.
            Found::Remains | Found::Finished => match stub::clear_remains(&**lower) {
                Err(error) if writes => return Err(error),
                _ => {}
            },
            // Its bytes come to the PFS first where they can, though nobody wants them: whoever has
            // them must not write them over what comes next.
            Found::Stub(mark) if writes && wish.truncate => {
                match recalled(&self.core, lower, &mark, &version) {
                    Err(error) if error.kind() == ErrorKind::Lost => {}
                    other => return other.map(Checked::At),
                }
                if !self.empty(lower, &mark, &version)? {
                    return self.check_stub(file, lower, wish, lower.version()?);
                }
            }
            Found::Stub(mark) => {
                let of = (&mark, &version);
                let owed = wish.may_read_owed.then(|| self.owed(file, lower, wish.terms, of));
                if let Some(cached) = owed.flatten() {
                    return Ok(Checked::Owed(cached));
                }
                return recalled(&self.core, lower, &mark, &version).map(Checked::At);
            }
        }
        lower.version().map(Checked::At)
    }

    /// The version of a file without a mark, which was seen at `version` before that was looked
    /// for: a node may have written it back, or taken its mark off, in between.
    fn unmarked(
        &self,
        file: &Arc<FileState>,
        lower: &Arc<dyn LowerFile>,
        wish: &Wish,
        version: Version,
    ) -> Result<Checked> {
        if version.size > 0 && !is_fresh(&version) {
            return Ok(Checked::At(version));
        }
        let now = lower.version()?;
        if now.agrees_with(&version) || stub::find(&**lower, now.size)? == Found::Nothing {
            return Ok(Checked::At(now));
        }
        self.check_stub(file, lower, wish, now)
    }

    /// Makes a stub an empty file. False where it is not this stub any more. Where there are other
    /// nodes a new file takes its place, and the open is told to open that.
    fn empty(&self, lower: &Arc<dyn LowerFile>, mark: &Mark, version: &Version) -> Result<bool> {
        let is_known = version.id.device == self.core.pfs.device();
        let cluster = self.core.cluster().filter(|_| is_known);
        let epoch = stub::epoch_to_settle(&**lower, mark)?;
        let (Some(epoch), Some(cluster)) = (epoch, cluster) else {
            return stub::clear(&**lower).map(|()| true);
        };
        let holders = mark.copies.as_ref().map_or(&[][..], |copies| &copies.holders);
        let name = || memory_only::name_of(&**lower);
        let emptied = asked::while_another_node_works(|| {
            cluster.empty_stub(&self.core, (epoch, holders), version, &**lower)
        });
        match emptied {
            _ if cluster.is_replaced(&self.core, (version, epoch), &**lower) => {
                Err(replaced(&name()))
            }
            Ok(_) => Ok(false),
            Err(reason) => Err(stub::lost_because(&name(), mark, &reason)),
        }
    }

    /// Whether something is cached of this very version, which so was no stub. Those of the length
    /// of a stub are looked at each time: marks may come within a tick of the time stamps.
    fn is_known(&self, file: &FileState, version: &Version) -> bool {
        let core = &self.core;
        if tidepool_proto::stub::head_may_hold_mark(version.size, true) || version.size == 0 {
            return false;
        }
        let packed = || core.store.small_state(version.id);
        file.cached().is_some_and(|cached| {
            !cached.is_memory_only() && !cached.is_racy() && cached.version().agrees_with(version)
        }) || packed().is_some_and(|(cached, _)| cached.agrees_with(version))
    }

    /// Opens the file behind a descriptor, whose bytes the PFS has then.
    pub(crate) fn open_handle(&self, request: OpenRequest) -> Result<Handle> {
        self.open_handle_for(request, false)
    }

    /// The same, where the bytes of a file that is only read may be with another node still.
    pub(crate) fn open_handle_for(
        &self,
        request: OpenRequest,
        may_read_owed: bool,
    ) -> Result<Handle> {
        if !request.created {
            self.core.check_open()?;
        }
        let lower = self.core.pfs.file(request.lower)?;
        if let Some(identity) = request.changes_as {
            lower.change_as(identity);
        }
        let file = self.core.files.get_or_create(lower.id());
        let rule = self.core.rule_of(&*lower);
        let modes = self.core.modes(rule, request.read_mode, request.write_mode);
        if let (true, Some((_, rule))) = (request.created, rule) {
            striping::apply_to_new_file(&*self.core.pfs, &*lower, rule);
        }
        let wish = Wish {
            access: request.access,
            terms: CacheTerms::of(&self.core, rule, request.user_id),
            created: request.created,
            truncate: request.truncate,
            may_read_owed: may_read_owed
                && request.access == Access::Read
                && !(request.created || request.truncate)
                && modes.0 == ReadMode::TwoLevel,
        };
        let (cached, written_directly) = self.cached_version_at(&file, &lower, &wish)?;
        let modes = if written_directly { (ReadMode::Bypass, modes.1) } else { modes };
        let opened = Opened {
            lower,
            access: request.access,
            user_id: request.user_id,
            modes,
            append: request.append,
            created: request.created,
        };
        if self.core.cluster().is_some() || self.core.pfs.features().fsync_is_per_open {
            note_open(&file, &opened);
        }
        let mut handle = Handle::new(&self.core, file.clone(), cached, opened);
        handle.note_path();
        if request.created && modes.1.is_in_memory() && request.access.writes() {
            let changing = file.close_gate();
            let current = file.cached().filter(|cached| !cached.is_memory_only());
            if let Some(cached) = current {
                handle.begin_new_memory_only(&changing, &cached)?;
            }
        }
        Ok(handle)
    }
}

/// Waits until the attributes are off a file that was written back; false where the node that takes
/// them off does not get on.
fn wait_until_finished(lower: &dyn LowerFile) -> Result<bool> {
    let begun = Instant::now();
    while stub::find(lower, lower.version()?.size)? == Found::Finished {
        if begun.elapsed() >= FINISH_LIMIT {
            return Ok(false);
        }
        std::thread::sleep(FINISH_INTERVAL);
    }
    Ok(true)
}

/// Whether a file was changed a moment ago, by the clock of this node or a little off it.
fn is_fresh(version: &Version) -> bool {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ns = i128::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(i128::MAX);
    (now_ns - version.changed_ns).unsigned_abs() < FRESH.as_nanos()
}

/// The error of an open whose file another one took the place of.
fn replaced(name: &str) -> Error {
    let detail = format!("a copy of {name} was just put in its place");
    Error::new(ErrorKind::Changed, "opening a file", detail).remedy("open it again")
}

/// The error of an open while it is not known whether a file has the right place.
fn unsettled(name: &str, reason: String) -> Error {
    let detail = format!("a copy of {name} is being put in its place: {reason}");
    Error::new(ErrorKind::Changed, "opening a file", detail).remedy("open it again later")
}

/// Whether an open at `version` may read `cached`, which is no memory-only one.
fn is_usable(cached: &CachedVersion, version: &Version, inner: &Inner) -> bool {
    // Another node's change may hide behind racy time stamps. What the kernel reads by
    // itself beside a writer of this node stays: it could not be led on to what the writer writes.
    let is_stale = cached.is_racy() && (inner.writers == 0 || !cached.is_borrowed_by_kernel());
    let is_current = cached.version().agrees_with(version) && !cached.is_memory_only();
    // Invalidation is final (invariant 3), even if the version is right after all.
    is_current && !cached.is_invalidated() && !is_stale
}

/// Whether nobody has the file open, nothing of it is resident, and it was charged to somebody else
/// than the one who opens it now, whose quota counts from here on.
fn is_left_of_another(cached: &CachedVersion, owner: Owner, inner: &Inner) -> bool {
    inner.handles == 0
        && cached.owner != owner
        && !cached.is_memory_only()
        && cached.segment().is_some_and(|segment| segment.resident_bytes() == 0)
}

/// Begins what is cached of the file at `version`.
pub(crate) fn new_cached_version(
    inner: &mut Inner,
    terms: CacheTerms,
    version: Version,
    is_shared: bool,
) -> Arc<CachedVersion> {
    let admit = terms.admit && !is_shared && !inner.written_directly;
    let cached = Arc::new(CachedVersion::new(version, terms.owner, admit));
    if is_shared {
        // The next change of the other program may hide behind one of our writer.
        cached.mark_racy();
    }
    inner.cached = Some(cached.clone());
    inner.capture = Default::default();
    inner.pin = None;
    cached
}

/// Remembers a descriptor for as long as its open lives.
fn note_open(file: &FileState, opened: &Opened) {
    let mut inner = file.inner.lock();
    inner.opens.retain(|known| known.lower.strong_count() > 0);
    let (lower, reads) = (Arc::downgrade(&opened.lower), opened.access.reads());
    inner.opens.push(OpenLower { lower, reads });
}

fn register(inner: &mut Inner, access: Access) {
    if inner.handles == 0 {
        inner.removed = false;
    }
    inner.handles += 1;
    if access.writes() {
        inner.writers += 1;
    }
}
