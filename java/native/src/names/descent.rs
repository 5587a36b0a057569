//! [`Descent`]: a walk down a tree of any depth, with one entry a level on the heap and few
//! descriptors. No recursion: the stack of a Java thread is small, and its end that of the JVM.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Levels whose descriptors are kept; those above are opened again by `..` on the way back.
const OPEN_MAX: usize = 16;

/// The directories from the top of a tree down to where a walk is, each with what the walk has to
/// know of it.
#[derive(Debug)]
pub(super) struct Descent<S> {
    levels: Vec<Level<S>>,
    /// Descriptors of the deepest levels, the deepest last.
    open: VecDeque<OwnedFd>,
}

#[derive(Debug)]
struct Level<S> {
    /// Device and inode, by which the directory is known again.
    id: (u64, u64),
    state: S,
}

fn id_of(directory: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl<S> Descent<S> {
    pub(super) fn new() -> Self {
        Descent { levels: Vec::new(), open: VecDeque::new() }
    }

    /// Goes down into a directory of the deepest one.
    pub(super) fn enter(&mut self, directory: OwnedFd, state: S) -> rustix::io::Result<()> {
        self.levels.push(Level { id: id_of(&directory)?, state });
        self.open.push_back(directory);
        if self.open.len() > OPEN_MAX {
            self.open.pop_front();
        }
        Ok(())
    }

    /// Where the walk is; `None` when it has left the top.
    pub(super) fn deepest(&mut self) -> Option<(&OwnedFd, &mut S)> {
        Some((self.open.back()?, &mut self.levels.last_mut()?.state))
    }

    /// Goes back up from the deepest directory. Fails if that was moved elsewhere meanwhile.
    pub(super) fn leave(&mut self) -> rustix::io::Result<Option<S>> {
        let (Some(left), Some(directory)) = (self.levels.pop(), self.open.pop_back()) else {
            return Ok(None);
        };
        if let Some(above) = self.levels.last()
            && self.open.is_empty()
        {
            // It was read when the walk entered it.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let parent = rustix::fs::openat(&directory, "..", flags, Mode::empty())?;
            if id_of(&parent)? != above.id {
                return Err(Errno::STALE);
            }
            self.open.push_back(parent);
        }
        Ok(Some(left.state))
    }
}

/// Trees that a path cannot name, for tests.
#[cfg(test)]
pub(super) mod deep {
    use super::*;
    use std::path::Path;

    /// Levels that no stack of a thread takes.
    pub(in super::super) const LEVELS: usize = 20_000;
    const STACK_BYTES: usize = 256 << 10;

    /// Makes directories `d` in each other in `top`, and a file of three bytes in the deepest.
    pub(in super::super) fn make(top: &Path) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = rustix::fs::open(top, flags, Mode::empty()).unwrap();
        for _ in 0..LEVELS {
            rustix::fs::mkdirat(&directory, "d", Mode::from_raw_mode(0o755)).unwrap();
            directory = rustix::fs::openat(&directory, "d", flags, Mode::empty()).unwrap();
        }
        let creating = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&directory, "f", creating, Mode::from_raw_mode(0o644)).unwrap();
        rustix::io::write(&file, b"123").unwrap();
    }

    /// Runs `body` on a stack as small as that of the smallest thread of Java's.
    pub(in super::super) fn on_a_small_stack<T: Send>(body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            builder.spawn_scoped(scope, body).unwrap().join().unwrap()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_moved_meanwhile_notices() {
        let directory = tempfile::tempdir().unwrap();
        let mut path = directory.path().join("top");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut descent = Descent::new();
        for level in 0..=OPEN_MAX {
            std::fs::create_dir(&path).unwrap();
            let opened = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
            descent.enter(opened, level).unwrap();
            path.push("d");
        }
        let elsewhere = directory.path().join("elsewhere");
        std::fs::rename(directory.path().join("top/d"), elsewhere).unwrap();
        for level in (2..=OPEN_MAX).rev() {
            assert_eq!(descent.leave(), Ok(Some(level)));
        }
        assert_eq!(descent.leave(), Err(Errno::STALE));
    }
}
