//! Recorded machines for tests: trees of kernel files in a directory of the test's own.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tidepool_control::sensor::{Roots, Sense, Sensors};
use tidepool_control_policy::Snapshot;
use tidepool_proto::Result;

/// `/proc/meminfo` of a node with 64 GiB: 20 GiB free, 8 GiB page cache, 30 GiB of programs.
pub const MEMINFO: &str = "MemTotal:       67108864 kB\nMemFree:        20971520 kB\n\
MemAvailable:   27262976 kB\nBuffers:            1024 kB\nCached:         12582912 kB\n\
Active(file):    4194304 kB\nInactive(file):  4194304 kB\nDirty:              1024 kB\n\
Writeback:             0 kB\nAnonPages:      31457280 kB\nShmem:           4194304 kB\n\
KReclaimable:     524288 kB\nSlab:            1048576 kB\nSReclaimable:     524288 kB\n\
SUnreclaim:       524288 kB\nKernelStack:       16384 kB\nPageTables:        65536 kB\n\
VmallocUsed:       65536 kB\nPercpu:            32768 kB\nHugePages_Total:       0\n\
Hugetlb:               0 kB\n";

/// The same of Linux 2.6.32.
pub const MEMINFO_OLD: &str = "MemTotal:       67108864 kB\nMemFree:        20971520 kB\n\
Buffers:            1024 kB\nCached:         12582912 kB\nActive(file):    4194304 kB\n\
Inactive(file):  4194304 kB\nDirty:              1024 kB\nWriteback:             0 kB\n\
AnonPages:      31457280 kB\nShmem:           4194304 kB\nSReclaimable:     524288 kB\n\
SUnreclaim:       524288 kB\n";

/// Two CPUs with 40000 and 20000 free pages in their lists.
pub const ZONEINFO: &str = "Node 0, zone   Normal\n  pages free     5242880\n\
        min      11000\n\
        low      14000\n        high     17000\n        managed  16777216\n\
        protection: (0, 0, 0)\n  pagesets\n    cpu: 0\n              count: 40000\n\
              high:  50000\n              batch: 63\n    cpu: 1\n              count: 20000\n\
              high:  50000\n              batch: 63\n";

/// Pressure with 1234 and 567 microseconds.
pub const PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\n\
full avg10=0.00 avg60=0.00 avg300=0.00 total=567\n";

/// Events of a machine that has swapped.
pub const VMSTAT: &str = "nr_free_pages 5242880\npswpin 1\npswpout 42\nworkingset_refault_anon 5\n\
workingset_refault_file 99\nallocstall_normal 3\n";

/// A tree of kernel files.
pub struct Machine(TempDir);

impl Machine {
    /// An empty tree.
    pub fn empty() -> Self {
        Machine(tempfile::tempdir().unwrap())
    }

    /// A machine with everything but control groups and a second NUMA node.
    pub fn recorded() -> Self {
        Machine::empty()
            .with("proc/meminfo", MEMINFO)
            .with("proc/zoneinfo", ZONEINFO)
            .with("proc/pressure/memory", PRESSURE)
            .with("proc/vmstat", VMSTAT)
            .with("sys/devices/system/node/node0/meminfo", MEMINFO)
    }

    /// The tree with one file more, or with another content of it.
    pub fn with(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.set(path, content);
        self
    }

    /// Changes a file in place, as the kernel does: open descriptors see it.
    pub fn set(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Removes a file or a directory.
    pub fn remove(&self, path: &str) {
        let path = self.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Its sensors.
    pub fn open(&self) -> Result<Sensors> {
        self.open_for(None)
    }

    /// Its sensors for a store that lives in another process.
    pub fn open_for(&self, store_process: Option<u32>) -> Result<Sensors> {
        Sensors::open(Roots { root: self.path().to_owned(), store_process })
    }

    /// One reading by fresh sensors.
    pub fn snapshot(&self) -> Snapshot {
        reading(&mut self.open().unwrap(), 0)
    }
}

/// One reading.
pub fn reading(sensors: &mut Sensors, at_ns: u64) -> Snapshot {
    let mut snapshot = Snapshot::default();
    sensors.read(at_ns, 0, &mut snapshot);
    snapshot
}
