//! Applies operations to the product and to the reference, one at a time, and compares.
//!
//! Operations that make no sense now (their handle or file is missing) are passed over, so that any
//! part of a log can be replayed.

use std::path::Path;

use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::{BLOCK_BYTES_DEFAULT, MemorySize, ReadMode, WriteMode};

use super::actors::{Actor, ActorSpec, Role};
use super::checks::{Mismatch, Range, bytes_match, may_fail, succeeded};
use super::generator::Cast;
use super::operation::{DIRECTORIES, Operation, directory_of, fill};
use super::reference::{Candidate, FileNumber, HandleKey, Reference};
use super::wire::{Answer, Command, Opening, StubNow};
use crate::product::Subject;

/// The slot of checks; the generator does not use it.
const CHECK_SLOT: u8 = u8::MAX;
/// Files up to this size are compared whole on the PFS after a close.
const WHOLE_BYTES: u64 = 256 << 10;

/// Whether an operation was possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was carried out and compared.
    Yes,
    /// It made no sense now.
    PassedOver,
}

pub(super) type Outcome = Result<Applied, Mismatch>;

/// The product, the reference and the actors between them.
pub struct Driver<'a> {
    /// What ought to be.
    pub model: Reference,
    pub(super) subject: &'a mut dyn Subject,
    pub(super) actors: Vec<Actor>,
    pub(super) cast: Cast,
    kills: u64,
}

impl<'a> Driver<'a> {
    /// Makes the directories and starts the actors. `program` is the actor binary.
    pub fn start(
        program: &Path,
        subject: &'a mut dyn Subject,
        cast: Cast,
    ) -> std::io::Result<Driver<'a>> {
        for directory in DIRECTORIES {
            std::fs::create_dir_all(subject.pfs().join(directory.name))?;
        }
        let mut actors = Vec::new();
        for number in 0..=cast.outside() {
            let (role, root) = if number < cast.mounts {
                (Role::Mount, subject.mount())
            } else if number < cast.outside() {
                (Role::Library, subject.pfs())
            } else {
                (Role::Outside, subject.pfs())
            };
            let socket = (role == Role::Library).then(|| subject.socket()).flatten();
            let defect = if role == Role::Outside { None } else { subject.defect() };
            let spec = ActorSpec {
                role,
                root: root.to_owned(),
                socket: socket.map(Path::to_owned),
                defect,
            };
            actors.push(Actor::start(program, &spec)?);
        }
        Ok(Driver { model: Reference::default(), subject, actors, cast, kills: 0 })
    }

    pub(super) fn ask(&mut self, actor: u8, command: &Command) -> Result<Answer, Mismatch> {
        Ok(self.actors[usize::from(actor)].ask(command)?)
    }

    pub(super) fn outside(&mut self, command: &Command) -> Result<Answer, Mismatch> {
        self.ask(self.cast.outside(), command)
    }

    pub(super) fn is_library(&self, actor: u8) -> bool {
        self.actors[usize::from(actor)].role == Role::Library
    }

    /// Carries out one operation.
    pub fn apply(&mut self, operation: &Operation) -> Outcome {
        use Operation as Op;
        match operation {
            Op::Open { actor, slot, path, opening } => self.open((*actor, *slot), path, *opening),
            Op::Read { actor, slot, offset, length } => {
                let range = Range { offset: *offset, length: *length };
                self.read((*actor, *slot), range, false)
            }
            Op::ReadMapped { actor, slot, offset, length } => {
                let range = Range { offset: *offset, length: *length };
                self.read((*actor, *slot), range, true)
            }
            Op::Write { actor, slot, offset, length, seed } => {
                let range = Range { offset: *offset, length: *length };
                self.write((*actor, *slot), range, *seed)
            }
            Op::SetSize { actor, slot, size } => self.set_size((*actor, *slot), *size),
            Op::Punch { actor, slot, offset, length } => {
                self.punch((*actor, *slot), Range { offset: *offset, length: *length })
            }
            Op::Sync { actor, slot } => self.sync((*actor, *slot)),
            Op::Size { actor, slot } => self.size((*actor, *slot)),
            Op::Close { actor, slot } => self.close((*actor, *slot)),
            Op::Stat { actor, path } => self.stat(*actor, path),
            Op::Check { actor, path, offset, length, opening } => {
                let range = Range { offset: *offset, length: *length };
                self.check(*actor, path, range, *opening)
            }
            by_name => self.apply_by_name(by_name),
        }
    }

    fn apply_by_name(&mut self, operation: &Operation) -> Outcome {
        use Operation as Op;
        match operation {
            Op::Rename { actor, from, to } => self.rename(*actor, from, to),
            Op::Link { actor, from, to } => self.link(*actor, from, to),
            Op::Unlink { actor, path } => self.unlink(*actor, path),
            Op::TruncatePath { actor, path, size } => self.truncate(*actor, path, *size),
            Op::Change { path, change, seed } => self.change(path, *change, *seed),
            Op::Settle { path } => self.settle(path),
            Op::Kill => self.kill(),
            Op::Evict { path } => self.admin(AdminRequest::Evict, Some(path)),
            Op::Load { path } => self.admin(AdminRequest::Load, Some(path)),
            Op::Pin { path } => self.admin(AdminRequest::Pin, Some(path)),
            Op::Unpin { path } => self.admin(AdminRequest::Unpin, Some(path)),
            Op::EvictAll => self.admin(AdminRequest::EvictAll, None),
            Op::Resize { capacity_bytes } => {
                // Less than a block is refused.
                let bytes = capacity_bytes / BLOCK_BYTES_DEFAULT * BLOCK_BYTES_DEFAULT;
                self.admin(AdminRequest::Resize { size: MemorySize::Bytes(bytes) }, None)
            }
            Op::SetPolicy { policy } => {
                self.admin(AdminRequest::SetPolicy { policy: policy.clone() }, None)
            }
            _ => Ok(Applied::PassedOver),
        }
    }

    fn open(&mut self, key: HandleKey, path: &str, opening: Opening) -> Outcome {
        if self.model.handle(key).is_some() {
            return Ok(Applied::PassedOver);
        }
        let command = Command::Open { slot: key.1, path: path.to_owned(), opening };
        let answer = self.ask(key.0, &command)?;
        if self.model.number(path).is_none() && !opening.create {
            return expected_errno(&answer, libc::ENOENT, "opening a name that is not there");
        }
        succeeded(&answer, "open")?;
        self.model.open(key, path, opening);
        if self.is_library(key.0) {
            self.model.send_along(key);
        }
        Ok(Applied::Yes)
    }

    fn read(&mut self, key: HandleKey, range: Range, mapped: bool) -> Outcome {
        let Some(handle) = self.model.handle(key).cloned() else { return Ok(Applied::PassedOver) };
        let file = self.model.file(handle.file);
        let mut range = range;
        if !handle.opening.access.reads() {
            return Ok(Applied::PassedOver);
        }
        if mapped {
            // A mapping beyond the end is a signal, not an error; and one of a file that somebody
            // else may have shortened is at the reader's own risk.
            let size = file.bytes.len() as u64;
            range.length = range.length.min(size.saturating_sub(range.offset));
            let unsure = range.offset + range.length > Reference::shortest_end(&handle);
            if range.length == 0 || file.epoch != handle.epoch || unsure {
                return Ok(Applied::PassedOver);
            }
        }
        let Range { offset, length } = range;
        let (actor, slot) = key;
        let command = match mapped {
            true => Command::ReadMapped { slot, offset, length },
            false => Command::Read { slot, offset, length },
        };
        let answer = self.ask(actor, &command)?;
        if answer.errno != 0 && may_fail(&self.model, &handle, answer.errno) {
            return Ok(Applied::Yes);
        }
        let append = handle.opening.append && !self.subject.maps_appends();
        if mapped && append && answer.errno == libc::ENODEV {
            return Ok(Applied::Yes);
        }
        succeeded(&answer, "read")?;
        let mut candidates = self.model.candidates(&handle);
        if self.subject.is_plain() {
            candidates.push(Candidate::whole(&self.model.file(handle.file).bytes));
        }
        let seen = &self.actors[usize::from(actor)].buffer()[..answer.value as usize];
        if handle.grown.iter().any(|grown| grown.allows(offset, length, seen)) {
            return Ok(Applied::Yes);
        }
        bytes_match(range, seen, &candidates)?;
        Ok(Applied::Yes)
    }

    fn write(&mut self, key: HandleKey, range: Range, seed: u64) -> Outcome {
        let Some(handle) = self.model.handle(key).cloned() else { return Ok(Applied::PassedOver) };
        if !handle.opening.access.writes() {
            return Ok(Applied::PassedOver);
        }
        let Range { offset, length } = range;
        fill(seed, &mut self.actors[usize::from(key.0)].buffer()[..length as usize]);
        let answer = self.ask(key.0, &Command::Write { slot: key.1, offset, length })?;
        if length > 0 && self.is_told(key, &answer, "write")? {
            return Ok(Applied::Yes);
        }
        succeeded(&answer, "write")?;
        let size = self.model.file(handle.file).bytes.len() as u64;
        let at = if handle.opening.append { size } else { offset };
        let data = &self.actors[usize::from(key.0)].buffer()[..length as usize];
        self.model.write(handle.file, at, data);
        self.note_growth(handle.file, size)?;
        Ok(Applied::Yes)
    }

    fn set_size(&mut self, key: HandleKey, size: u64) -> Outcome {
        let Some(handle) = self.model.handle(key).cloned() else { return Ok(Applied::PassedOver) };
        if !handle.opening.access.writes() {
            return Ok(Applied::PassedOver);
        }
        let answer = self.ask(key.0, &Command::SetSize { slot: key.1, size })?;
        if self.is_told(key, &answer, "ftruncate")? {
            return Ok(Applied::Yes);
        }
        succeeded(&answer, "ftruncate")?;
        let size_before = self.model.file(handle.file).bytes.len() as u64;
        self.model.set_size(handle.file, size);
        self.note_growth(handle.file, size_before)?;
        if size == 0 && handle.write_mode == WriteMode::Memory {
            self.model.file_mut(handle.file).maybe_memory_only = true;
        }
        Ok(Applied::Yes)
    }

    fn punch(&mut self, key: HandleKey, range: Range) -> Outcome {
        let Some(handle) = self.model.handle(key).cloned() else { return Ok(Applied::PassedOver) };
        if !handle.opening.access.writes() || self.is_library(key.0) || range.length == 0 {
            return Ok(Applied::PassedOver);
        }
        let Range { offset, length } = range;
        let answer = self.ask(key.0, &Command::Punch { slot: key.1, offset, length })?;
        if self.is_told(key, &answer, "fallocate")? {
            return Ok(Applied::Yes);
        }
        succeeded(&answer, "fallocate")?;
        self.model.punch(handle.file, offset, length);
        Ok(Applied::Yes)
    }

    fn sync(&mut self, key: HandleKey) -> Outcome {
        if self.model.handle(key).is_none() {
            return Ok(Applied::PassedOver);
        }
        let answer = self.ask(key.0, &Command::Sync { slot: key.1 })?;
        if self.is_told(key, &answer, "fsync")? {
            return Ok(Applied::Yes);
        }
        succeeded(&answer, "fsync")?;
        Ok(Applied::Yes)
    }

    fn size(&mut self, key: HandleKey) -> Outcome {
        let Some(handle) = self.model.handle(key).cloned() else { return Ok(Applied::PassedOver) };
        let answer = self.ask(key.0, &Command::Size { slot: key.1 })?;
        succeeded(&answer, "size")?;
        let mut sizes: Vec<u64> =
            self.model.candidates(&handle).iter().map(|candidate| candidate.size).collect();
        sizes.push(self.model.file(handle.file).bytes.len() as u64);
        if sizes.contains(&answer.value) {
            return Ok(Applied::Yes);
        }
        Err(Mismatch(format!("the handle says {} bytes, right is {sizes:?}", answer.value)))
    }

    fn close(&mut self, key: HandleKey) -> Outcome {
        let Some(handle) = self.model.handle(key).cloned() else { return Ok(Applied::PassedOver) };
        let answer = self.ask(key.0, &Command::Close { slot: key.1 })?;
        if self.is_told(key, &answer, "close")? {
            self.model.close(key);
            return Ok(Applied::Yes);
        }
        succeeded(&answer, "close")?;
        self.model.close(key);
        let promised = handle.opening.access.writes() && handle.write_mode != WriteMode::Memory;
        if promised && let Some(path) = self.model.name_of(handle.file).cloned() {
            self.compare_on_pfs(handle.file, &path)?;
        }
        Ok(Applied::Yes)
    }

    /// What was written and closed is on the PFS, for everybody to read.
    fn compare_on_pfs(&mut self, number: FileNumber, path: &str) -> Result<(), Mismatch> {
        let file = self.model.file(number);
        if file.maybe_memory_only {
            return Ok(());
        }
        let size = file.bytes.len() as u64;
        let ranges = match size {
            0..=WHOLE_BYTES => vec![Range { offset: 0, length: size + 1 }],
            _ => vec![
                Range { offset: 0, length: 4096 },
                Range { offset: size / 2, length: 4096 },
                Range { offset: size - 4096, length: 8192 },
            ],
        };
        for range in ranges {
            self.check(self.cast.outside(), path, range, Opening::READ)?;
        }
        Ok(())
    }

    fn stat(&mut self, actor: u8, path: &str) -> Outcome {
        let answer = self.ask(actor, &Command::Stat { path: path.to_owned() })?;
        let Some(number) = self.model.number(path) else {
            return expected_errno(&answer, libc::ENOENT, "stat of a name that is not there");
        };
        succeeded(&answer, "stat")?;
        let (size, links) = (self.model.file(number).bytes.len() as u64, self.model.links(number));
        if (answer.value, answer.links) != (size, links) {
            let Answer { value, links: seen, .. } = answer;
            return Err(Mismatch(format!(
                "stat says {value} bytes and {seen} links, right is {size} and {links}"
            )));
        }
        Ok(Applied::Yes)
    }

    /// A fresh open sees exactly the bytes of the model.
    fn check(&mut self, actor: u8, path: &str, range: Range, opening: Opening) -> Outcome {
        let outside = actor == self.cast.outside();
        if outside && self.is_unfinished(path) {
            return Ok(Applied::PassedOver);
        }
        let key = (actor, CHECK_SLOT);
        if self.open(key, path, opening)? == Applied::PassedOver
            || self.model.number(path).is_none()
        {
            return Ok(Applied::Yes);
        }
        self.size(key)?;
        self.read(key, range, false)?;
        let answer = self.ask(actor, &Command::Close { slot: CHECK_SLOT })?;
        succeeded(&answer, "close of a reader")?;
        self.model.close(key);
        Ok(Applied::Yes)
    }

    /// Whether the PFS need not have the bytes of a file yet.
    fn is_unfinished(&self, path: &str) -> bool {
        let Some(number) = self.model.number(path) else { return false };
        let writers = |handle: &super::reference::ModelHandle| {
            handle.file == number && handle.opening.access.writes()
        };
        self.model.file(number).maybe_memory_only
            || self.model.handles().any(|(_, handle)| writers(handle))
    }

    fn is_memory_only(&self, path: &str) -> bool {
        self.model.by_name(path).is_some_and(|file| file.maybe_memory_only)
    }

    /// Another program's change of metadata begins a new epoch, as one of bytes does.
    fn begin_epoch_outside(&mut self, actor: u8, path: &str) {
        if actor == self.cast.outside()
            && let Some(number) = self.model.number(path)
        {
            self.model.begin_epoch(number);
        }
    }

    fn rename(&mut self, actor: u8, from: &str, to: &str) -> Outcome {
        let outside = actor == self.cast.outside();
        let forbidden = outside && (self.is_memory_only(from) || self.is_memory_only(to));
        if self.model.number(from).is_none() || forbidden {
            return Ok(Applied::PassedOver);
        }
        let command = Command::Rename { from: from.to_owned(), to: to.to_owned() };
        succeeded(&self.ask(actor, &command)?, "rename")?;
        if self.model.number(from) != self.model.number(to) {
            self.begin_epoch_outside(actor, from);
            self.begin_epoch_outside(actor, to);
        }
        self.model.rename(from, to);
        Ok(Applied::Yes)
    }

    fn link(&mut self, actor: u8, from: &str, to: &str) -> Outcome {
        let forbidden = actor == self.cast.outside() && self.is_memory_only(from);
        let possible = self.model.number(from).is_some() && self.model.number(to).is_none();
        if !possible || forbidden {
            return Ok(Applied::PassedOver);
        }
        let command = Command::Link { from: from.to_owned(), to: to.to_owned() };
        succeeded(&self.ask(actor, &command)?, "link")?;
        self.begin_epoch_outside(actor, from);
        self.model.link(from, to);
        Ok(Applied::Yes)
    }

    fn unlink(&mut self, actor: u8, path: &str) -> Outcome {
        let forbidden = actor == self.cast.outside() && self.is_memory_only(path);
        if self.model.number(path).is_none() || forbidden {
            return Ok(Applied::PassedOver);
        }
        succeeded(&self.ask(actor, &Command::Unlink { path: path.to_owned() })?, "unlink")?;
        self.begin_epoch_outside(actor, path);
        self.model.unlink(path);
        Ok(Applied::Yes)
    }

    fn truncate(&mut self, actor: u8, path: &str, size: u64) -> Outcome {
        let Some(number) = self.model.number(path) else { return Ok(Applied::PassedOver) };
        let command = Command::TruncatePath { path: path.to_owned(), size };
        succeeded(&self.ask(actor, &command)?, "truncate")?;
        let size_before = self.model.file(number).bytes.len() as u64;
        self.model.set_size(number, size);
        self.note_growth(number, size_before)?;
        if size == 0 && directory_of(path).write_mode == WriteMode::Memory {
            self.model.file_mut(number).maybe_memory_only = true;
        }
        Ok(Applied::Yes)
    }
}

/// Succeeds if the answer is just this error.
fn expected_errno(answer: &Answer, errno: i32, what: &str) -> Outcome {
    if answer.errno == errno {
        return Ok(Applied::Yes);
    }
    let Answer { errno: seen, message, .. } = answer;
    Err(Mismatch(format!("{what}: errno {seen} ({message}) instead of {errno}")))
}

/// Administration, crashes and the end of a run.
impl Driver<'_> {
    /// A memory-only file that was written back is on the PFS whole, and an ordinary file.
    fn settle(&mut self, path: &str) -> Outcome {
        let Some(number) = self.model.number(path) else { return Ok(Applied::PassedOver) };
        if !self.model.file(number).maybe_memory_only {
            return Ok(Applied::PassedOver);
        }
        let answer = self.outside(&Command::IsStub { path: path.to_owned() })?;
        succeeded(&answer, "looking for the mark of a stub")?;
        if answer.value == StubNow::No as u64 {
            self.model.file_mut(number).maybe_memory_only = false;
            self.compare_on_pfs(number, path)?;
        }
        Ok(Applied::Yes)
    }

    fn admin(&mut self, request: AdminRequest, path: Option<&str>) -> Outcome {
        let missing = path.is_some_and(|path| self.model.number(path).is_none());
        if !self.cast.administration || missing {
            return Ok(Applied::PassedOver);
        }
        let what = format!("{request:?}");
        let path_text = path.map(str::to_owned);
        let command = Command::Admin { request: request.clone(), path: path_text };
        let answer = self.ask(self.cast.mounts, &command)?;
        // Loading and pinning may find no room; packed files cannot be pinned.
        let refusals: &[i32] = match request {
            AdminRequest::Load => &[libc::ENOSPC],
            AdminRequest::Pin => &[libc::ENOSPC, libc::EOPNOTSUPP],
            _ => &[],
        };
        if refusals.contains(&answer.errno) {
            return Ok(Applied::Yes);
        }
        succeeded(&answer, &what)?;
        if let (Some(AdminReply::Loaded(report)), Some(path)) = (answer.admin.as_deref(), path) {
            let size = self.model.by_name(path).map_or(0, |file| file.bytes.len() as u64);
            if report.size_bytes != size {
                return Err(Mismatch(format!("{what} of {size} bytes reports {report:?}")));
            }
        }
        Ok(Applied::Yes)
    }

    fn kill(&mut self) -> Outcome {
        if !self.cast.administration {
            return Ok(Applied::PassedOver);
        }
        self.kills += 1;
        self.subject.kill()?;
        self.check_without_node()?;
        for actor in &mut self.actors {
            actor.ask(&Command::CloseAll)?;
        }
        self.model.close_all();
        self.subject.start_again()?;
        for (path, number) in self.all_names() {
            if self.model.number(&path) == Some(number) {
                self.find_out_what_is_left(&path, number)?;
            }
        }
        Ok(Applied::Yes)
    }

    pub(super) fn all_names(&self) -> Vec<(String, FileNumber)> {
        self.model.names().map(|(name, number)| (name.clone(), number)).collect()
    }

    /// The library goes on without a node.
    fn check_without_node(&mut self) -> Result<(), Mismatch> {
        if self.cast.libraries == 0 {
            return Ok(());
        }
        let durable: Vec<_> =
            self.all_names().into_iter().filter(|(path, _)| !self.is_memory_only(path)).collect();
        let start = self.kills as usize % durable.len().max(1);
        for (path, _) in durable.iter().skip(start).take(3) {
            let range = Range { offset: 0, length: 64 << 10 };
            self.check(self.cast.mounts, path, range, Opening::READ)
                .map_err(|Mismatch(text)| Mismatch(format!("without a node, {path}: {text}")))?;
        }
        Ok(())
    }

    /// After a crash a memory-only file is whole, or refused as lost; then it is removed.
    fn find_out_what_is_left(&mut self, path: &str, number: FileNumber) -> Result<(), Mismatch> {
        let size = self.model.file(number).bytes.len() as u64;
        let whole = Range { offset: 0, length: size + 1 };
        if !self.model.file(number).maybe_memory_only {
            return match size <= WHOLE_BYTES {
                true => self.check(0, path, whole, Opening::READ).map(drop),
                false => Ok(()),
            };
        }
        let opening = Opening::READ;
        let open = Command::Open { slot: CHECK_SLOT, path: path.to_owned(), opening };
        let answer = self.ask(0, &open)?;
        if answer.errno == 0 {
            self.ask(0, &Command::Close { slot: CHECK_SLOT })?;
            self.model.file_mut(number).maybe_memory_only = false;
            self.check(0, path, whole, opening)?;
            return self.compare_on_pfs(number, path);
        }
        expected_errno(&answer, libc::EIO, "opening a memory-only file whose node was killed")?;
        self.remove_outside(number)
    }

    /// Compares every file whole, as everybody sees it, before and after an eviction of all.
    pub fn check_everything(&mut self) -> Result<(), Mismatch> {
        let keys: Vec<HandleKey> = self.model.handles().map(|(key, _)| key).collect();
        for key in keys {
            self.close(key)?;
        }
        for pass in 0..2 {
            for (path, number) in self.all_names() {
                let size = self.model.file(number).bytes.len() as u64;
                let range = Range { offset: 0, length: size + 1 };
                for actor in [0, self.cast.mounts, self.cast.outside()] {
                    let opening = Opening { read_mode: Some(ReadMode::TwoLevel), ..Opening::READ };
                    self.check(actor, &path, range, opening).map_err(|Mismatch(text)| {
                        Mismatch(format!("at the end, pass {pass}, actor {actor}, {path}: {text}"))
                    })?;
                }
            }
            self.admin(AdminRequest::EvictAll, None)?;
        }
        Ok(())
    }
}
