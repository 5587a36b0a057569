//! What the node answers to the command line.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tidepool_proto::admin::{
    AdminReply, AdminRequest, AdminService, Explanation, FreeReport, HitRatio, LoadReport,
    ResizeReport, Status, StoreStatus,
};
use tidepool_proto::control::{CeilingLease, ControlStatus, PfsFull};
use tidepool_proto::residency::{RESIDENCY_RUNS_MAX, ResidencyRun, ResidencyState, residency_runs};
use tidepool_proto::stub::Mark;
use tidepool_proto::{
    ByteSize, Error, ErrorKind, FileService, MemorySize, OpenFile, OpenRequest, ReadMode, Result,
};

use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::handle::Handle;
use crate::file::memory_only;
use crate::file::state::FileState;
use crate::file::stub::{self, Found};
use crate::file::write_back_pool::Wait;
use crate::file::write_back_state::is_no_room;
use crate::node::Node;
use crate::promise::PfsPromise;
use crate::striping;

impl AdminService for Node {
    fn pfs_root(&self) -> PathBuf {
        self.core.config.pfs.clone()
    }

    fn admin_while(
        &self,
        request: AdminRequest,
        descriptor: Option<OwnedFd>,
        user_id: u32,
        go_on: &dyn Fn() -> bool,
    ) -> Result<AdminReply> {
        let file = || {
            descriptor.ok_or_else(|| {
                Error::new(ErrorKind::Protocol, "answering the command line", "no descriptor came")
            })
        };
        if request.is_of_pins() {
            self.core.end_stray_pins();
        }
        if let Some(change) = request.change() {
            tracing::info!(user_id, "asked for: {change}");
        }
        Ok(match request {
            // The connection that a trace lives on answers it.
            AdminRequest::Trace(_) => return Err(trace_elsewhere()),
            AdminRequest::Flush => AdminReply::Flushed(self.flush(file()?, user_id)?),
            AdminRequest::Owed => AdminReply::Owed(self.owed_files()),
            AdminRequest::FlushAll { forgets_missing } => self.flush_all(forgets_missing, go_on)?,
            AdminRequest::Status => AdminReply::Status(Box::new(self.status())),
            AdminRequest::Explain => AdminReply::Explain(Box::new(self.explain(file()?, user_id)?)),
            AdminRequest::Load => AdminReply::Loaded(self.load(file()?, user_id, false, go_on)?),
            AdminRequest::Pin => AdminReply::Loaded(self.load(file()?, user_id, true, go_on)?),
            AdminRequest::Unpin => AdminReply::Unpinned(self.unpin(file()?, user_id)?),
            AdminRequest::Evict => AdminReply::Freed(self.evict(file()?)?),
            AdminRequest::EvictAll => AdminReply::Freed(self.core.store.evict_all()),
            AdminRequest::Resize { size } => AdminReply::Resized(self.resize(size)?),
            AdminRequest::SetPolicy { policy } => {
                self.core.store.set_policy(policy.parse()?);
                AdminReply::Done
            }
            AdminRequest::Config => AdminReply::Config(self.core.config.entries.clone()),
            AdminRequest::Drain { stop } => self.drain_as_asked(stop, go_on)?,
            AdminRequest::Metrics => {
                AdminReply::Metrics(tidepool_proto::metric::render(&self.status()))
            }
            AdminRequest::Files { order, count } => {
                AdminReply::Files(self.cached_files(order, count, user_id))
            }
            AdminRequest::Govern(request) => {
                self.core.publish_memory_only();
                AdminReply::Governed(Box::new(self.core.capacity_lease.govern(request)?))
            }
            AdminRequest::ControlStatus => self.counted_control_status(),
            AdminRequest::SetControl { name, value } => {
                self.core.capacity_lease.set(&name, &value)?;
                AdminReply::Done
            }
            AdminRequest::Observe => AdminReply::Observed,
            AdminRequest::LeaseCeiling(request) => self.lease_ceiling(&request)?,
            AdminRequest::Resume => {
                self.resume();
                AdminReply::Done
            }
            AdminRequest::ClusterStatus => AdminReply::Cluster(self.cluster_reports()?),
            AdminRequest::MeasureNodes { shift } => AdminReply::Measured(self.measure(shift)?),
            AdminRequest::Spread => AdminReply::Spread(self.spread(file()?, user_id, go_on)?),
            AdminRequest::HandOn { limit_ms } => {
                AdminReply::HandedOn(self.hand_on(Duration::from_millis(limit_ms), go_on)?)
            }
            AdminRequest::Locate(range) => AdminReply::Located(self.locate(file()?, range)?),
        })
    }

    fn control_pages(&self, fence: u64) -> Result<[OwnedFd; 2]> {
        self.core.capacity_lease.pages(fence)
    }

    fn observed_page(&self) -> Result<OwnedFd> {
        self.core.store.control_page_descriptor()
    }
}

fn trace_elsewhere() -> Error {
    let detail = "it goes by the connection of the watcher";
    Error::new(ErrorKind::Unsupported, "tracing requests", detail)
}

impl Node {
    /// Facts and counters.
    pub fn status(&self) -> Status {
        let core = &self.core;
        let counters = &core.counters;
        let served = counters.served_by_level();
        let hits = HitRatio::of(&served, counters.passthrough_bytes.get());
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").into(),
            process_id: std::process::id(),
            uptime_s: core.started.elapsed().as_secs(),
            pfs: core.config.pfs.display().to_string(),
            pfs_type: core.pfs.features().fs_type.clone(),
            socket: core.config.socket.display().to_string(),
            read_mode: core.config.read_mode.to_string(),
            write_mode: core.config.write_mode.to_string(),
            directory_rules: core.config.rules.len() as u64,
            user_quotas: core.config.quotas.len() as u64,
            store: core.store.stats(),
            served,
            asked_bytes: counters.asked_bytes.get(),
            failed_bytes: counters.failed_bytes.get(),
            hit_ratio_at_least: hits.hit_ratio_at_least,
            hit_ratio_estimated: hits.hit_ratio_estimated,
            reading_opens: counters.reading_opens.get(),
            probes: counters.probes(),
            traces: self.tracer.under_way(),
            draining: core.drained.is_on(),
            written_bytes: counters.written_bytes.get(),
            pfs_read_bytes: counters.pfs_read_bytes.get(),
            peer_read_bytes: counters.peer_read_bytes.get(),
            peer_served_bytes: counters.peer_served_bytes.get(),
            cluster: core.cluster().map(|cluster| Box::new(cluster.status())),
            buffer: core.burst_buffer.as_ref().map(|it| Box::new(it.status())),
            pfs_written_bytes: counters.pfs_written_bytes.get(),
            open_files: counters.open_files.get(),
            memory_only_files: core.memory_only.count(),
            transfers: counters.transfers(),
            degraded: self.degraded(),
            ..Status::default()
        };
        self.add_dirty(&mut status);
        status.control = self.control_status();
        status
    }

    /// What is lost, one line each: known at the start, found out since, and what hangs.
    fn degraded(&self) -> Vec<String> {
        let core = &self.core;
        let found = Some(core.promise.now()).filter(|it| *it == PfsPromise::ChangesHide);
        let found = found.and_then(PfsPromise::note).map(str::to_owned);
        let control = core.capacity_lease.status();
        let stores = control.not_governed().map(str::to_owned);
        self.notes().iter().cloned().chain(found).chain(hanging(core)).chain(stores).collect()
    }

    /// The memory control as operators see it.
    pub fn control_status(&self) -> ControlStatus {
        let mut status = self.core.capacity_lease.status();
        status.pfs_full = self.pfs_full();
        status
    }

    /// The same, dirty bytes counted anew.
    fn counted_control_status(&self) -> AdminReply {
        self.core.publish_dirty();
        AdminReply::Control(Box::new(self.control_status()))
    }

    fn lease_ceiling(&self, request: &CeilingLease) -> Result<AdminReply> {
        Ok(AdminReply::CeilingLeased(self.core.capacity_lease.lease_ceiling(request)?))
    }

    /// What the PFS had no room for: memory-only files, and bytes that programs could not sync.
    fn pfs_full(&self) -> Option<PfsFull> {
        let core = &self.core;
        let refusals = core.memory_only.write_back_state().state();
        let mut full = refusals.filter(|_| core.memory_only.count() > 0);
        for file in core.files.all() {
            let refused = file.unsynced.failing().filter(|(errno, _)| is_no_room(*errno));
            let Some((_, why)) = refused else { continue };
            // Who closed it was told.
            if file.inner.lock().handles > 0 {
                let since_s = file.unsynced.dirty_for().map_or(0, |age| age.as_secs());
                let full = full.get_or_insert(PfsFull { since_s, why, ..PfsFull::default() });
                full.since_s = full.since_s.max(since_s);
                full.dirty_bytes += file.unsynced.dirty_bytes();
            }
        }
        full.iter_mut().for_each(PfsFull::fit);
        full
    }

    /// Tells that a controller should govern from now on: the store falls to its guaranteed part
    /// where none attaches within a lease.
    ///
    /// # Errors
    ///
    /// `LimitReached` where there is no thread to watch over it.
    pub fn expect_controller(&self) -> Result<()> {
        self.core.capacity_lease.expect()
    }

    /// Waits until a controller governs, at most for `timeout`; whether one does.
    pub fn wait_for_controller(&self, timeout: Duration) -> bool {
        self.core.capacity_lease.wait_until_governed(timeout)
    }

    /// Tells that the process of a controller ended, so that the next may take over at once.
    pub fn controller_ended(&self, process_id: u32) {
        self.core.capacity_lease.note_end(process_id);
    }

    /// Takes the store away from its controller; the capacity is the configured one again.
    pub fn release_control(&self) {
        self.core.capacity_lease.release();
    }

    fn add_dirty(&self, status: &mut Status) {
        for file in self.core.files.all() {
            status.dirty_bytes += file.unsynced.dirty_bytes();
            let age = file.unsynced.dirty_for();
            status.dirty_age_ms = status.dirty_age_ms.max(age.map(|age| age.as_millis() as u64));
        }
        let memory_only = self.core.memory_only.cached_versions();
        status.memory_only_bytes = memory_only.iter().map(|cached| cached.size()).sum();
    }

    pub(crate) fn open_for_admin(&self, descriptor: OwnedFd, user_id: u32) -> Result<Handle> {
        let read_mode = Some(ReadMode::TwoLevel);
        self.open_handle(OpenRequest { read_mode, ..OpenRequest::to_read(descriptor, user_id) })
    }

    /// Brings a whole file in, several transfers at a time, and pins it if asked to.
    fn load(
        &self,
        descriptor: OwnedFd,
        user_id: u32,
        pin: bool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<LoadReport> {
        let open = self.open_for_admin(descriptor, user_id)?;
        let size = open.size()?;
        self.check_fits(size)?;
        let before = resident_bytes(self, open.opened_cached_version());
        let ahead = u64::from(self.core.config.transfers) * self.core.block_bytes();
        let turn = if size > ahead { Some(self.loads.turn(user_id, go_on)?) } else { None };
        open.bring_in(ahead, go_on)?;
        drop(turn);
        let id = open.version().id;
        let file = self.core.files.get(id);
        if pin {
            let file = file.as_ref().ok_or_else(|| unknown("pinning"))?;
            self.pin_file(file, open.lower(), user_id)?;
        }
        let cached = file.and_then(|file| file.cached());
        let resident = cached.map_or(0, |cached| resident_bytes(self, &cached));
        Ok(LoadReport {
            size_bytes: size,
            resident_bytes: resident.min(size),
            read_bytes: size.saturating_sub(before),
        })
    }

    /// A longer file would push itself out again, and everything else with it.
    fn check_fits(&self, size: u64) -> Result<()> {
        let capacity_bytes = self.core.store.stats().capacity_bytes;
        if size <= capacity_bytes {
            return Ok(());
        }
        let (size, capacity) = (ByteSize(size), ByteSize(capacity_bytes));
        let detail = format!("it is {size} long, and the store holds {capacity}");
        Err(Error::new(ErrorKind::StoreFull, "loading a file", detail)
            .remedy("read it through the node: what is read is kept as far as there is room"))
    }

    fn pin_file(&self, file: &FileState, lower: BorrowedFd<'_>, user_id: u32) -> Result<()> {
        let mut inner = file.inner.lock();
        if inner.cached.as_ref().is_some_and(|cached| cached.is_memory_only()) {
            return Ok(()); // it is in memory and nowhere else
        }
        let segment = inner.cached.as_ref().and_then(|cached| cached.segment().cloned());
        let Some(segment) = segment else {
            return Err(Error::new(ErrorKind::Unsupported, "pinning", "small files are packed")
                .remedy("packed files stay longest in a directory without other traffic"));
        };
        if inner.pin.is_none() {
            let user_bytes_max = self.core.config.client_limits.pinned_bytes_max;
            inner.pin = Some(self.core.pins.pin(&segment, lower, user_id, user_bytes_max)?);
        }
        Ok(())
    }

    /// Lets a file be evicted again; whether it was pinned.
    fn unpin(&self, descriptor: OwnedFd, user_id: u32) -> Result<bool> {
        let id = self.core.pfs.file(descriptor)?.version()?.id;
        let Some(file) = self.core.files.get(id) else { return Ok(false) };
        let mut inner = file.inner.lock();
        if let Some(pin) = &inner.pin {
            pin.check_end(user_id)?;
        }
        let was_pinned = inner.pin.take().is_some();
        drop(inner);
        self.core.files.release(&file);
        Ok(was_pinned)
    }

    fn drain_as_asked(&self, stop: bool, go_on: &dyn Fn() -> bool) -> Result<AdminReply> {
        match stop {
            true => self.drain_while(go_on)?,
            false => self.drain()?,
        }
        Ok(AdminReply::Done)
    }

    fn evict(&self, descriptor: OwnedFd) -> Result<FreeReport> {
        let begun = Instant::now();
        let id = self.core.pfs.file(descriptor)?.version()?.id;
        let mut freed = 0;
        let mut held = 0;
        if let Some((_, bytes)) = self.core.store.small_state(id) {
            self.core.store.remove_small(id);
            freed += bytes;
        }
        if let Some(file) = self.core.files.get(id) {
            if let Some(segment) = file.cached().and_then(|cached| cached.segment().cloned()) {
                freed += segment.evict();
                held = segment.resident_bytes();
            }
            self.core.files.release(&file);
        }
        let stats = self.core.store.stats();
        Ok(FreeReport {
            freed_bytes: freed,
            resident_bytes: stats.resident_bytes,
            capacity_bytes: stats.capacity_bytes,
            held_bytes: held,
            elapsed_ms: begun.elapsed().as_secs_f64() * 1e3,
        })
    }

    /// Sets the capacity, which the process around the node has judged. Unlike a controller, which
    /// asks again, this returns when all is written back that had to be, or nothing more can be.
    fn resize(&self, size: MemorySize) -> Result<ResizeReport> {
        let MemorySize::Bytes(capacity_bytes) = size else {
            let detail = "a share of what memory is not known here";
            return Err(Error::new(ErrorKind::Unsupported, "resizing the store", detail)
                .remedy("ask for bytes"));
        };
        let begun = Instant::now();
        let ceiling_before_bytes = self.core.capacity_lease.status().ceiling_bytes;
        let before = self.core.store.stats().resident_bytes;
        let mut report = self.core.capacity_lease.resize(capacity_bytes);
        loop {
            let excess = report.resident_bytes.saturating_sub(report.capacity_bytes);
            let is_over = || {
                self.core.write_back_pool.ask(excess, Wait::ToEnd) == 0
                    && !self.core.cluster().is_some_and(|it| it.copies_went(excess))
            };
            if excess == 0 || is_over() {
                break;
            }
            let freed_bytes = report.freed_bytes;
            report = self.core.store.settle();
            report.freed_bytes += freed_bytes;
        }
        // A controller gives back beside it.
        let gone = before.saturating_sub(report.resident_bytes);
        report.freed_bytes = report.freed_bytes.max(gone);
        Ok(ResizeReport {
            asked_bytes: capacity_bytes,
            ceiling_bytes: capacity_bytes,
            ceiling_before_bytes,
            freed_bytes: report.freed_bytes,
            resident_bytes: report.resident_bytes,
            capacity_bytes: report.capacity_bytes,
            held_bytes: report.held_bytes,
            elapsed_ms: begun.elapsed().as_secs_f64() * 1e3,
        })
    }

    /// Everything known of one file.
    fn explain(&self, descriptor: OwnedFd, user_id: u32) -> Result<Explanation> {
        let core = &self.core;
        let lower = core.pfs.file(descriptor)?;
        let version = lower.version()?;
        let rule = core.rule_of(&*lower);
        let (read_mode, write_mode) = core.modes(rule, None, None);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let StoreStatus { policy, policy_choice, .. } = core.store.stats();
        let layout = core.pfs.layout(lower.descriptor());
        let mut answer = Explanation {
            path: lower.relative_path().map_or_else(String::new, |p| p.display().to_string()),
            device: version.id.device,
            inode: version.id.inode,
            size_bytes: version.size,
            modified_ns: version.modified_ns.to_string(),
            changed_ns: version.changed_ns.to_string(),
            cached_as: "none".into(),
            block_bytes: core.block_bytes(),
            policy,
            policy_choice,
            read_mode: read_mode.to_string(),
            write_mode: write_mode.to_string(),
            layout: layout.describe(),
            stripes: striping::explain(&layout, version.size, core.block_bytes()),
            ..Explanation::default()
        };
        if let Some((cached, bytes)) = core.store.small_state(version.id) {
            answer.cached_as = "packed".into();
            answer.current = cached.agrees_with(&version);
            answer.resident_bytes = bytes;
            answer.residency_runs = vec![ResidencyRun { state: ResidencyState::Clean, blocks: 1 }];
        }
        let memory_only = self.memory_only_size(version.id, version.size).is_some();
        if !memory_only && let Ok(Found::Stub(mark)) = stub::find(&*lower, version.size) {
            let holders = core.cluster().map_or_else(Vec::new, |it| it.who_has(&mark));
            explain_stub(&mut answer, &mark, holders);
        }
        if let Some(file) = core.files.get(version.id) {
            explain_file(&mut answer, &file, &version);
        }
        match core.cluster() {
            Some(cluster) => cluster.explain(&version, &mut answer),
            None if answer.resident_bytes > 0 => answer.holders.push(host),
            None => {}
        }
        if rule.is_some_and(|(_, rule)| !rule.admit) {
            answer.why_not.push("the directory rule does not admit this file".into());
        }
        let _ = user_id;
        conclude(&mut answer);
        Ok(answer)
    }
}

fn unknown(what: &str) -> Error {
    Error::new(ErrorKind::Internal, what, "the file has no record")
}

fn resident_bytes(node: &Node, cached: &CachedVersion) -> u64 {
    match cached.segment() {
        Some(segment) => segment.resident_bytes(),
        None => node.core.store.small_state(cached.id()).map_or(0, |(_, bytes)| bytes),
    }
}

/// Of a file that is in memory alone, of `holders` or of nobody.
fn explain_stub(answer: &mut Explanation, mark: &Mark, holders: Vec<String>) {
    answer.size_bytes = mark.length;
    if let Some(away) = stub::Away::of(mark).filter(|_| holders.is_empty()) {
        answer.cached_as = "away".into();
        answer.why_not.push(format!("{}: {}", away.detail, away.remedy));
        return;
    }
    if holders.is_empty() {
        answer.cached_as = "lost".into();
        answer.why_not.push(format!(
            "it was written in mode `memory` ({} bytes) by process {} on {}, which does not \
             serve it here: opening it answers EIO until it is removed or written anew",
            mark.length, mark.process_id, mark.host
        ));
        return;
    }
    answer.cached_as = "elsewhere".into();
    answer.why_not.push(format!(
        "its bytes are in the memory of {}, which writes them to the PFS when it is opened here",
        holders.join(" and ")
    ));
    answer.holders = holders;
}

fn explain_file(answer: &mut Explanation, file: &FileState, version: &tidepool_proto::Version) {
    let inner = file.inner.lock();
    answer.open_handles = u64::from(inner.handles);
    answer.pinned = inner.pin.is_some();
    answer.dirty_bytes = file.unsynced.dirty_bytes();
    let Some(cached) = &inner.cached else { return };
    if cached.is_memory_only() {
        answer.cached_as = "memory-only".into();
        answer.size_bytes = cached.size();
        answer.dirty_bytes += cached.size();
    }
    let Some(segment) = cached.segment() else { return };
    if !cached.is_memory_only() {
        answer.cached_as = "segment".into();
    }
    answer.current = cached.version().agrees_with(version) && !cached.is_invalidated();
    answer.resident_bytes = segment.resident_bytes();
    answer.policy_rank = segment.rank();
    answer.residency_runs =
        residency_runs(segment.blocks(), segment.resident_blocks(), RESIDENCY_RUNS_MAX);
    if cached.is_racy() {
        answer.why_not.push(
            "it changed within the granularity of the PFS's time stamps: the next open reads it \
             again"
                .into(),
        );
    }
}

/// Says where the next read comes from, and why not from nearer.
fn conclude(answer: &mut Explanation) {
    let whole = answer.resident_bytes >= answer.size_bytes;
    let readable = answer.current || answer.cached_as == "memory-only";
    answer.next_read = if matches!(answer.cached_as.as_str(), "lost" | "away") {
        "nowhere"
    } else if answer.read_mode == "bypass" {
        answer.why_not.push("read mode `bypass` never uses the store".into());
        "pfs"
    } else if readable && whole && answer.resident_bytes > 0 {
        "store"
    } else if readable && answer.resident_bytes > 0 {
        answer.why_not.push("some blocks are absent: never read, evicted, or not admitted".into());
        "store and pfs"
    } else {
        if answer.cached_as == "elsewhere" {
            // It was said.
        } else if answer.cached_as == "none" {
            answer
                .why_not
                .push("nothing of it was read through this node, or it was evicted".into());
        } else if !answer.current {
            answer.why_not.push("the PFS has another version than the one cached".into());
        }
        "pfs"
    }
    .into();
}

/// Files in memory alone that the PFS does not answer for.
fn hanging(core: &Core) -> impl Iterator<Item = String> {
    let hanging = core.memory_only.steps().hanging().into_iter();
    hanging.map(|(file, elapsed)| {
        let (name, elapsed_s) = (memory_only::name_of_file(core, file), elapsed.as_secs());
        format!("the PFS has not answered for {elapsed_s} s: {name} is being written back")
    })
}
