//! The directory of a node's socket: made where it is missing, and refused where somebody else
//! could put files into it. Lock, log and socket lie there, and are written with the node's rights.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tidepool_proto::{Error, ErrorKind, Result};

use crate::machine::default_socket;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
const ROOT: u32 = 0;

/// Makes the directory of the socket. The default one is its user's alone; one that was named is
/// open to all to look up but not to write, for the clients of a node of all users.
pub fn prepare(socket: &Path) -> Result<()> {
    let Some(directory) = socket.parent().filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(());
    };
    let private = !rustix::process::geteuid().is_root() && socket == default_socket();
    let mut builder = DirBuilder::new();
    let builder = builder.recursive(true).mode(if private { 0o700 } else { 0o755 });
    builder.create(directory).map_err(|source| {
        Error::pfs(format!("creating {} for the socket", directory.display()), source)
            .remedy("choose another place by --socket")
    })?;
    check(directory)
}

/// Checks a directory and the one it lies in, unless nobody but root may change it: both are made
/// by a node where they are missing. What lies above is the machine's.
fn check(directory: &Path) -> Result<()> {
    for path in directory.ancestors().filter(|path| !path.as_os_str().is_empty()).take(2) {
        let look = |facts: std::io::Result<Metadata>| {
            facts.map_err(|source| Error::pfs(format!("looking at {}", path.display()), source))
        };
        // Links of ours and of root lead where we want to go; what they lead to is looked at.
        let facts = look(std::fs::symlink_metadata(path))?;
        let own = rustix::process::geteuid().as_raw();
        let facts = match facts.is_symlink() && [ROOT, own].contains(&facts.uid()) {
            true => look(std::fs::metadata(path))?,
            false => facts,
        };
        let closed = facts.mode() & (GROUP_WRITES | OTHERS_WRITE) == 0;
        if facts.uid() == ROOT && (closed || facts.mode() & STICKY != 0) {
            continue;
        }
        if let Some(why) = objection(&facts) {
            let operation = format!("using {} for the socket", path.display());
            return Err(Error::new(ErrorKind::PermissionDenied, operation, why)
                .remedy("remove it, or choose another place by --socket"));
        }
    }
    Ok(())
}

/// Why files of ours are not safe in a directory.
fn objection(facts: &Metadata) -> Option<String> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if facts.is_symlink() {
        return Some(format!("it is a link of user {}", facts.uid()));
    }
    if facts.uid() != user.as_raw() {
        return Some(format!("it belongs to user {}", facts.uid()));
    }
    // Many machines give each user a group of its own, which may write what the user makes.
    let group_writes = facts.mode() & GROUP_WRITES != 0 && facts.gid() != group.as_raw();
    let others_write = facts.mode() & OTHERS_WRITE != 0 && facts.mode() & STICKY == 0;
    (group_writes || others_write).then(|| "other users may write to it".to_owned())
}

/// Log file of a daemon that was given none.
pub fn default_log_file(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".log");
    PathBuf::from(name)
}

/// Opens a log to append to. The one beside the socket is no link; one that was named may be, but
/// not where all may put files.
///
/// # Errors
/// `PermissionDenied` for a file of somebody else, or of several names, in such a directory; a link
/// there is not followed.
pub fn open_log(path: &Path, socket: &Path) -> Result<File> {
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    let directory = std::fs::metadata(directory.unwrap_or(Path::new(".")));
    let is_open_to_all = directory.is_ok_and(|facts| facts.mode() & OTHERS_WRITE != 0);
    let mut flags = 0;
    if is_open_to_all || path == default_log_file(socket) {
        flags |= libc::O_NOFOLLOW;
    }
    if is_open_to_all {
        // A pipe that was put there has no reader.
        flags |= libc::O_NONBLOCK;
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640).custom_flags(flags);
    let operation = || format!("opening the log {}", path.display());
    let file = options.open(path).and_then(|file| file.metadata().map(|facts| (file, facts)));
    let remedy = "name another file by --log-file";
    let (file, facts) = file.map_err(|source| Error::pfs(operation(), source).remedy(remedy))?;
    let own = rustix::process::geteuid().as_raw();
    let is_ours = [ROOT, own].contains(&facts.uid()) && facts.nlink() == 1;
    if is_open_to_all && !(facts.is_file() && is_ours) {
        let why = "others may have put it there, for this node to write";
        return Err(Error::new(ErrorKind::PermissionDenied, operation(), why)
            .remedy(format!("remove it, or {remedy}")));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let top = tempfile::tempdir().unwrap();
        let own = top.path().join("own");
        prepare(&own.join("node.sock")).unwrap();
        let set = |mode| {
            std::fs::set_permissions(&own, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(0o777);
        let error = prepare(&own.join("node.sock")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        let below = prepare(&own.join("below/node.sock")).unwrap_err();
        assert_eq!(below.kind(), ErrorKind::PermissionDenied, "{below}");
        set(0o1777);
        prepare(&own.join("node.sock")).unwrap();
        set(0o755);
        prepare(&own.join("below/node.sock")).unwrap();
    }

    #[test]
    fn a_link_of_somebody_else_in_the_place_of_a_directory_is_refused() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can give a link to somebody else");
            return;
        }
        let top = tempfile::tempdir().unwrap();
        let (link, there) = (top.path().join("link"), top.path().join("there"));
        std::fs::create_dir(&there).unwrap();
        symlink(&there, &link).unwrap();
        prepare(&link.join("node.sock")).unwrap();
        std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o777)).unwrap();
        prepare(&link.join("node.sock")).expect_err("where the link of ours leads, others write");
        std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
        let error = prepare(&link.join("node.sock")).unwrap_err();
        assert!(error.to_string().contains("it is a link"), "{error}");
        std::os::unix::fs::chown(&there, Some(65_534), None).unwrap();
        let error = prepare(&there.join("node.sock")).unwrap_err();
        assert!(error.to_string().contains("belongs to user 65534"), "{error}");
    }

    #[test]
    fn a_log_that_somebody_put_where_all_may_put_files_is_refused() {
        let top = tempfile::tempdir().unwrap();
        let (log, secret) = (top.path().join("log"), top.path().join("secret"));
        let open = |log: &Path| open_log(log, Path::new("/nowhere/node.sock"));
        let set = |mode| {
            std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::write(&secret, "").unwrap();
        std::fs::hard_link(&secret, &log).unwrap();
        open(&log).expect("nobody else may put files there");
        set(0o1777);
        let error = open(&log).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        std::fs::remove_file(&secret).unwrap();
        open(&log).expect("a file of ours alone");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&log, Some(65_534), None).unwrap();
            open(&log).expect_err("a file of another user");
            set(0o755);
            open(&log).expect("a file for another user, where only root makes files");
            set(0o1777);
        }
        let (link, pipe) = (top.path().join("link"), top.path().join("pipe"));
        symlink(top.path().join("not-there"), &link).unwrap();
        open(&link).expect_err("a link");
        assert!(!top.path().join("not-there").exists(), "nothing is made where it leads");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        open(&pipe).expect_err("a pipe, which is not waited for");
        set(0o755);
        open(&link).expect("a link where only we make files");
    }
}
