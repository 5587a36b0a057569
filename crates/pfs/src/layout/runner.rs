//! The effects of layout backends: extended attributes through a descriptor, and commands of the
//! file system's own tools. One trait, so that tests replay recordings.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What a command printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CommandOutput {
    pub succeeded: bool,
    pub standard_output: String,
    pub standard_error: String,
}

/// Access to extended attributes and tools.
pub(crate) trait Runner: Send + Sync {
    fn get_xattr(&self, descriptor: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>>;
    fn set_xattr(&self, descriptor: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()>;
    /// Runs a program found in `PATH`; `NotFound` if there is none, `TimedOut` for one that the
    /// servers keep waiting.
    fn run(&self, program: &str, arguments: &[OsString]) -> io::Result<CommandOutput>;
    /// Absolute path of the file or directory, for tools that take names only.
    fn path_of(&self, descriptor: BorrowedFd<'_>) -> io::Result<PathBuf>;
    fn is_directory(&self, descriptor: BorrowedFd<'_>) -> bool;
    /// Text of a small file of the client's own facts.
    fn text_of(&self, path: &Path) -> io::Result<String>;
    /// Paths of all entries of a directory.
    fn entries_of(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
    /// The directory that holds the file now.
    fn open_parent(&self, descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd>;
}

/// Largest value that Linux passes (`XATTR_SIZE_MAX`), in bytes.
const VALUE_BYTES_MAX: usize = 65_536;

/// Value of an extended attribute; `None` if there is none of that name.
pub(crate) fn get_xattr(descriptor: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    use rustix::io::Errno;
    // The size is not asked for: MooseFS may tell that of a value that was replaced since.
    let mut value = vec![0u8; 512];
    loop {
        match rustix::fs::fgetxattr(descriptor, name, value.as_mut_slice()) {
            Ok(length) => {
                value.truncate(length);
                return Ok(Some(value));
            }
            Err(Errno::NODATA) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(Errno::RANGE) if value.len() < VALUE_BYTES_MAX => value.resize(VALUE_BYTES_MAX, 0),
            Err(error) => return Err(error.into()),
        }
    }
}

/// How long a tool may take.
const TOOL_TIME_MAX: Duration = Duration::from_secs(10);

/// What a command printed; it is killed if that takes longer.
fn output_of(command: &mut Command, longest: Duration) -> io::Result<Output> {
    let piped = command.env("LC_ALL", "C").stdin(Stdio::null());
    let child = piped.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // Its number may be another's once it was waited for.
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let process = id.and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiting = move || drop(sender.send(child.wait_with_output()));
    std::thread::Builder::new().name("tool".to_owned()).stack_size(256 << 10).spawn(waiting)?;
    receiver.recv_timeout(longest).unwrap_or_else(|_| {
        if let Some(process) = process {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        let text = format!("no answer within {} s", longest.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

/// The real thing.
pub(crate) struct SystemRunner;

impl Runner for SystemRunner {
    fn get_xattr(&self, descriptor: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
        get_xattr(descriptor, name)
    }

    fn set_xattr(&self, descriptor: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(descriptor, name, value, XattrFlags::empty())?)
    }

    fn run(&self, program: &str, arguments: &[OsString]) -> io::Result<CommandOutput> {
        let output = output_of(Command::new(program).args(arguments), TOOL_TIME_MAX)?;
        Ok(CommandOutput {
            succeeded: output.status.success(),
            standard_output: String::from_utf8_lossy(&output.stdout).into_owned(),
            standard_error: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    fn path_of(&self, descriptor: BorrowedFd<'_>) -> io::Result<PathBuf> {
        std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
    }

    fn is_directory(&self, descriptor: BorrowedFd<'_>) -> bool {
        rustix::fs::fstat(descriptor).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
        })
    }

    fn text_of(&self, path: &Path) -> io::Result<String> {
        std::fs::read_to_string(path)
    }

    fn entries_of(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn open_parent(&self, descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let path = self.path_of(descriptor)?;
        let parent = path.parent().ok_or(io::ErrorKind::NotFound)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(parent, flags, Mode::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_hangs_is_ended() {
        let longest = Duration::from_millis(200);
        let printed = output_of(Command::new("echo").arg("all"), Duration::from_secs(60)).unwrap();
        assert_eq!((printed.status.success(), printed.stdout), (true, b"all\n".to_vec()));
        let none = output_of(&mut Command::new("tidepool-no-such-tool"), longest).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        let mark = format!("3600.{}", std::process::id());
        let hung = output_of(Command::new("sleep").arg(&mark), longest).unwrap_err();
        assert_eq!(hung.kind(), io::ErrorKind::TimedOut);
        let runs = || {
            let processes = std::fs::read_dir("/proc").unwrap().flatten();
            let line = |process: std::fs::DirEntry| std::fs::read(process.path().join("cmdline"));
            processes
                .filter_map(|it| line(it).ok())
                .any(|it| it.ends_with(format!("{mark}\0").as_bytes()))
        };
        while runs() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
