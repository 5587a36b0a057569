//! Access checks: of the descriptors that clients bring, of those they are given, and of requests
//! that change the node. Every match is complete, so a new request must be placed here.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, OFlags, SealFlags, StatxFlags};
use tidepool_proto::admin::AdminRequest;
use tidepool_proto::trace::TraceRequest;
use tidepool_proto::wire::TRANSFER_BUFFER_BYTES_MAX;
use tidepool_proto::{Access, Error, ErrorKind, Result};

fn refused(operation: &str, detail: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, operation, detail)
}

/// Checks that a descriptor is of a regular file and allows `access`. Whether the file lies on the
/// PFS of this node is for the service, which knows it.
pub(super) fn check_file(descriptor: impl AsFd, access: Access) -> Result<()> {
    let operation = "checking the descriptor of a file";
    let descriptor = descriptor.as_fd();
    // Without looking at the inode first: that of a foreign mount may take forever.
    let flags =
        rustix::fs::fcntl_getfl(descriptor).map_err(|error| Error::pfs(operation, error))?;
    if flags.contains(OFlags::PATH) {
        return Err(refused(operation, "O_PATH descriptors give no access")
            .remedy("open the file for reading or writing"));
    }
    match FileType::from_raw_mode(facts(operation, descriptor)?.stx_mode.into()) {
        FileType::RegularFile => {}
        FileType::Directory => {
            return Err(refused(operation, "it is a directory").caused_by(rustix::io::Errno::ISDIR));
        }
        _ => return Err(refused(operation, "it is no regular file")),
    }
    let given = flags & OFlags::RWMODE;
    let (reads, writes) =
        (given != OFlags::WRONLY, given == OFlags::WRONLY || given == OFlags::RDWR);
    if (access.reads() && !reads) || (access.writes() && !writes) {
        let detail = format!("it does not allow what the open asks for ({access:?})");
        return Err(Error::new(ErrorKind::PermissionDenied, operation, detail)
            .caused_by(rustix::io::Errno::ACCESS));
    }
    Ok(())
}

/// Checks that a user may have what is cached of a file serve it after a change of metadata.
/// Between the two versions, the times of the file are only as good as the users who may set them:
/// the owner, users who may read and write the file, and operators of the node.
pub(super) fn check_vouches(descriptor: impl AsFd, user_id: u32) -> Result<()> {
    let descriptor = descriptor.as_fd();
    if check_file(descriptor, Access::ReadWrite).is_ok() {
        return Ok(());
    }
    check_file(descriptor, Access::Read).or_else(|_| check_file(descriptor, Access::Write))?;
    let operation = "checking who changed a file";
    if is_owners(operation, descriptor, user_id)? {
        return Ok(());
    }
    let detail = format!("user {user_id} neither owns it nor reads and writes it");
    Err(Error::new(ErrorKind::PermissionDenied, operation, detail)
        .remedy("what is cached is read anew; nothing is wrong"))
}

/// Checks that a user may have a file evicted: its owner, users who may write it, and operators of
/// the node. Each of its other readers pays for an eviction with a transfer, so a mere reader may
/// not have it done again and again.
pub(super) fn check_evicts(descriptor: impl AsFd, user_id: u32) -> Result<()> {
    let operation = "evicting a file";
    let descriptor = descriptor.as_fd();
    if check_file(descriptor, Access::Write).is_ok() || is_owners(operation, descriptor, user_id)? {
        return Ok(());
    }
    let detail = format!("user {user_id} neither owns nor writes it");
    Err(Error::new(ErrorKind::PermissionDenied, operation, detail)
        .remedy("ask the owner of the file, root or the owner of the node"))
}

/// Whether a user owns a file, or may do everything on this node.
fn is_owners(operation: &str, descriptor: BorrowedFd<'_>, user_id: u32) -> Result<bool> {
    let node_user_id = rustix::process::geteuid().as_raw();
    Ok([0, node_user_id, facts(operation, descriptor)?.stx_uid].contains(&user_id))
}

/// Type and owner of a file as this machine knows them. The server of a foreign file system, which
/// may never answer, is not asked: whose it is, is found out later.
fn facts(operation: &str, descriptor: BorrowedFd<'_>) -> Result<rustix::fs::Statx> {
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::UID;
    rustix::fs::statx(descriptor, "", at, wanted).map_err(|error| Error::pfs(operation, error))
}

/// Checks that a transfer buffer is memory of a bounded size that cannot shrink.
pub(super) fn check_transfer_buffer(descriptor: impl AsFd) -> Result<()> {
    let operation = "checking a transfer buffer";
    let flags = rustix::fs::fcntl_getfl(&descriptor).map_err(|e| Error::pfs(operation, e))?;
    if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY {
        return Err(refused(operation, "it cannot be read"));
    }
    // Only files in memory have seals, so a buffer never makes the node wait for a file system.
    let seals = rustix::fs::fcntl_get_seals(&descriptor)
        .map_err(|error| refused(operation, "it is no memory file").caused_by(error))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(refused(operation, "it is not sealed against shrinking"));
    }
    let size = rustix::fs::fstat(&descriptor).map_err(|e| Error::pfs(operation, e))?.st_size;
    if !(1..=TRANSFER_BUFFER_BYTES_MAX).contains(&u64::try_from(size).unwrap_or(0)) {
        let detail = format!("its size is not within 1 and {TRANSFER_BUFFER_BYTES_MAX} bytes");
        return Err(refused(operation, &detail));
    }
    Ok(())
}

/// Whether a process that is given this descriptor can only read the file: it is open for reading,
/// and cannot be opened anew for writing (through `/proc`) by other users.
pub(super) fn is_read_only(descriptor: BorrowedFd<'_>) -> bool {
    let for_reading = rustix::fs::fcntl_getfl(descriptor)
        .is_ok_and(|flags| flags & (OFlags::RWMODE | OFlags::PATH) == OFlags::RDONLY);
    let sealed = rustix::fs::fcntl_get_seals(descriptor)
        .is_ok_and(|seals| seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE));
    let guarded = rustix::fs::fstat(descriptor).is_ok_and(|status| status.st_mode & 0o022 == 0);
    for_reading && (sealed || guarded)
}

/// Whether a request is about one file, whose descriptor it must bring.
pub(super) fn concerns_a_file(request: &AdminRequest) -> bool {
    match request {
        AdminRequest::Explain
        | AdminRequest::Locate(_)
        | AdminRequest::Load
        | AdminRequest::Spread
        | AdminRequest::Evict
        | AdminRequest::Flush
        | AdminRequest::Pin
        | AdminRequest::Unpin
        | AdminRequest::Trace(TraceRequest::Start { has_file: true, .. }) => true,
        AdminRequest::Status
        | AdminRequest::EvictAll
        | AdminRequest::FlushAll { .. }
        | AdminRequest::Resize { .. }
        | AdminRequest::SetPolicy { .. }
        | AdminRequest::Config
        | AdminRequest::Drain { .. }
        | AdminRequest::Metrics
        | AdminRequest::Govern(_)
        | AdminRequest::ControlStatus
        | AdminRequest::ClusterStatus
        | AdminRequest::MeasureNodes { .. }
        | AdminRequest::HandOn { .. }
        | AdminRequest::Owed
        | AdminRequest::SetControl { .. }
        | AdminRequest::Files { .. }
        | AdminRequest::Resume
        | AdminRequest::Observe
        | AdminRequest::LeaseCeiling(_)
        | AdminRequest::Trace(_) => false,
    }
}

fn changes_the_node(request: &AdminRequest) -> bool {
    match request {
        AdminRequest::EvictAll
        | AdminRequest::FlushAll { .. }
        | AdminRequest::Resize { .. }
        | AdminRequest::SetPolicy { .. }
        | AdminRequest::Drain { .. }
        | AdminRequest::Govern(_)
        | AdminRequest::SetControl { .. }
        // It tells names of everybody's files.
        | AdminRequest::Owed
        // It takes the network for a second.
        | AdminRequest::MeasureNodes { .. }
        | AdminRequest::HandOn { .. }
        // It hands out memory of the node.
        | AdminRequest::Observe
        | AdminRequest::LeaseCeiling(_)
        | AdminRequest::Resume => true,
        AdminRequest::Status
        | AdminRequest::Explain
        | AdminRequest::Locate(_)
        | AdminRequest::Load
        | AdminRequest::Spread
        | AdminRequest::Evict
        | AdminRequest::Flush
        | AdminRequest::Pin
        | AdminRequest::Unpin
        | AdminRequest::Config
        | AdminRequest::Metrics
        | AdminRequest::ControlStatus
        | AdminRequest::ClusterStatus
        | AdminRequest::Files { .. }
        // Everybody sees his own requests.
        | AdminRequest::Trace(_) => false,
    }
}

/// Checks that a user may make this request.
pub(super) fn check_admin(request: &AdminRequest, user_id: u32) -> Result<()> {
    let owner_id = rustix::process::geteuid().as_raw();
    if !changes_the_node(request) || user_id == 0 || user_id == owner_id {
        return Ok(());
    }
    let detail = format!("user {user_id} may not change the node of user {owner_id}");
    Err(Error::new(ErrorKind::PermissionDenied, "checking an administrative request", detail)
        .remedy("ask root or the owner of the node"))
}
