//! The kernel's table of mounts, `/proc/self/mountinfo` of proc(5). The one reader of that format.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The type by which the table names a mount of a node.
pub const MOUNT_TYPE: &str = "fuse.tidepool";

/// The mounts that a process sees, at the moment of reading.
#[derive(Clone, Debug, Default)]
pub struct MountTable {
    text: Vec<u8>,
}

/// One line of the table. Paths and names are as the kernel escapes them; the methods undo that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Number of the mount; statx(2) tells that of a file.
    pub id: u64,
    /// Device number, major and minor.
    pub device: (u32, u32),
    root: &'a [u8],
    point: &'a [u8],
    kind: &'a [u8],
    source: &'a [u8],
    options: &'a [u8],
}

impl MountTable {
    /// The table of this process.
    ///
    /// # Errors
    /// As reading `/proc/self/mountinfo`.
    pub fn read() -> std::io::Result<Self> {
        std::fs::read("/proc/self/mountinfo").map(Self::from_text)
    }

    /// That of another process, which may live in another mount namespace.
    ///
    /// # Errors
    /// As reading its `mountinfo`: it is gone, or the caller may not look at it.
    pub fn of_process(id: u32) -> std::io::Result<Self> {
        std::fs::read(format!("/proc/{id}/mountinfo")).map(Self::from_text)
    }

    /// A table that was read elsewhere. Lines of another form are left out.
    pub fn from_text(text: impl Into<Vec<u8>>) -> Self {
        MountTable { text: text.into() }
    }

    /// All mounts; of several at one place the uppermost comes last.
    pub fn mounts(&self) -> impl DoubleEndedIterator<Item = Mount<'_>> {
        self.text.split(|byte| *byte == b'\n').filter_map(Mount::parse)
    }

    /// The uppermost mount at this place.
    pub fn at(&self, point: &Path) -> Option<Mount<'_>> {
        self.mounts().rev().find(|mount| mount.is_at(point))
    }

    /// The mount that `path`, absolute and without links, lies in.
    pub fn around(&self, path: &Path) -> Option<Mount<'_>> {
        path.ancestors().find_map(|place| self.at(place))
    }
}

impl<'a> Mount<'a> {
    /// `36 35 98:0 /root /mount/point options [optional ...] - type source super-options`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = text(fields.next()?)?.parse().ok()?;
        let (major, minor) = text(fields.nth(1)?)?.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut after = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, source) = (after.next()?, after.next()?);
        let options = after.next().unwrap_or_default();
        Some(Mount { id, device, root, point, kind, source, options })
    }

    /// The directory of its file system that it shows.
    pub fn root(&self) -> PathBuf {
        path(self.root)
    }

    /// Where it is mounted.
    pub fn point(&self) -> PathBuf {
        path(self.point)
    }

    /// Whether it is mounted at this place.
    pub fn is_at(&self, point: &Path) -> bool {
        unescape(self.point) == point.as_os_str().as_bytes()
    }

    /// Type of the file system, such as `ext4` or `fuse.sshfs`.
    pub fn kind(&self) -> Cow<'a, str> {
        lossy(self.kind)
    }

    /// Whether it is the mount of a node.
    pub fn is_of_a_node(&self) -> bool {
        self.kind == MOUNT_TYPE.as_bytes()
    }

    /// What is mounted: a device, a server, or what the file system says.
    pub fn source(&self) -> Cow<'a, str> {
        lossy(self.source)
    }

    /// Whether the file system has this option.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(|byte| *byte == b',').any(|option| option == name.as_bytes())
    }
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

fn path(field: &[u8]) -> PathBuf {
    match unescape(field) {
        Cow::Borrowed(bytes) => PathBuf::from(OsStr::from_bytes(bytes)),
        Cow::Owned(bytes) => PathBuf::from(OsString::from_vec(bytes)),
    }
}

fn lossy(field: &[u8]) -> Cow<'_, str> {
    match unescape(field) {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Undoes the octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'\\') {
        return Cow::Borrowed(field);
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).and_then(text);
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        (rest, _) = match (*first, escaped) {
            (b'\\', Some(byte)) => (&after[3..], bytes.push(byte)),
            (byte, _) => (after, bytes.push(byte)),
        };
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"21 1 0:1 / / rw - ext4 /dev/vda rw\n\
        36 35 98:0 /mnt1 /mnt/parent\\040of\\134x rw master:1 - ext3 /dev/root\\040disk rw\n\
        30 21 0:40 / /mnt/a\\040b rw,nosuid shared:1 master:2 - nfs server:/x rw\n\
        31 21 0:41 / /mnt/a\\040b rw - fuse.tidepool /pfs\\040x rw,memory,user_id=0\n\
        garbage\n\n30 - \n - x\n40 21 0:x / /mnt/c rw - ext4 /dev/vdb rw\n";

    #[test]
    fn the_uppermost_mount_is_found_by_its_unescaped_path() {
        let table = MountTable::from_text(TABLE);
        let found = table.at(Path::new("/mnt/a b")).unwrap();
        assert!(found.is_of_a_node());
        assert_eq!((found.kind(), found.source()), (MOUNT_TYPE.into(), "/pfs x".into()));
        assert_eq!((found.id, found.device), (31, (0, 41)));
        assert!(found.has_option("memory") && !found.has_option("user_id"));
        assert_eq!(table.at(Path::new("/mnt")), None);
        let other = table.mounts().nth(1).unwrap();
        assert_eq!(other.point(), Path::new("/mnt/parent of\\x"));
        assert_eq!((other.root(), other.source()), ("/mnt1".into(), "/dev/root disk".into()));
    }

    #[test]
    fn a_path_lies_in_the_nearest_mount_and_other_lines_are_left_out() {
        let table = MountTable::from_text(TABLE);
        assert_eq!(table.around(Path::new("/mnt/a b/c/d")).unwrap().id, 31);
        assert_eq!(table.around(Path::new("/mnt/ab")).unwrap().id, 21);
        assert_eq!(table.mounts().count(), 4);
        assert_eq!(MountTable::default().around(Path::new("/")), None);
    }

    #[test]
    fn this_process_sees_a_root() {
        assert!(MountTable::read().unwrap().at(Path::new("/")).is_some());
    }
}
