//! `Way`: a way to the same bytes, as `bench compare` sets them side by side.

/// A way to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A copy on tmpfs: the best there can be.
    Tmpfs,
    /// The PFS file out of the kernel's page cache; written without `fsync`.
    PageCache,
    /// Resident, through the mount.
    Mount,
    /// Resident, through the library.
    Library,
    /// The PFS file with nothing in the page cache; written with `fsync` of file and directory.
    BarePfs,
}

impl Way {
    /// The stable name used in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Way::Tmpfs => "tmpfs",
            Way::PageCache => "page cache",
            Way::Mount => "mount",
            Way::Library => "library",
            Way::BarePfs => "bare PFS",
        }
    }
}
