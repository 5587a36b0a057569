//! `/proc/meminfo`, and its twin of every NUMA node. A field that is missing stays `None`.

use memchr::memchr;

use super::text;
use super::zones::Zones;

macro_rules! fields {
    ($($field:ident $name:literal $doc:literal;)+) => {
        /// Bytes of memory by kind, as the kernel counts them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MemoryCounters {
            $(#[doc = $doc] pub $field: Option<u64>,)+
        }

        impl MemoryCounters {
            /// Reads the text of `/proc/meminfo` or of a node's `meminfo`.
            pub fn parse(text: &[u8]) -> Self {
                let mut counters = MemoryCounters::default();
                for line in text::lines(text) {
                    let Some((name, value)) = split(line) else { continue };
                    match name {
                        $($name => counters.$field = bytes(value).or(counters.$field),)+
                        _ => {}
                    }
                }
                counters
            }
        }
    };
}

fields! {
    total b"MemTotal:" "All memory that the kernel manages.";
    free b"MemFree:" "Free pages outside the per-CPU lists.";
    available b"MemAvailable:" "The kernel's estimate of what can be had without swapping.";
    active_file b"Active(file):" "Pages of files in recent use.";
    inactive_file b"Inactive(file):" "Pages of files not in recent use.";
    dirty b"Dirty:" "Pages of files that wait to be written.";
    writeback b"Writeback:" "Pages of files that are being written.";
    anonymous b"AnonPages:" "Memory of programs.";
    shared b"Shmem:" "Pages of tmpfs, memfd and shared memory: stores are in here.";
    reclaimable b"KReclaimable:" "Kernel memory that can be given back.";
    slab_reclaimable b"SReclaimable:" "Its part in slabs; older kernels know only this.";
    slab_unreclaimable b"SUnreclaim:" "Kernel objects that stay.";
    kernel_stack b"KernelStack:" "Stacks of tasks inside the kernel.";
    page_tables b"PageTables:" "Page tables.";
    secondary_page_tables b"SecPageTables:" "Page tables of virtual machines and devices.";
    vmalloc_used b"VmallocUsed:" "Pages in the vmalloc area, kernel stacks included.";
    per_cpu b"Percpu:" "Per-CPU objects.";
    bounce b"Bounce:" "Bounce buffers.";
    huge_pool b"Hugetlb:" "Reserved huge pages of all sizes.";
}

/// Name and value of a line, with or without `Node 0` in front.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, value) = line.split_at(memchr(b':', line)? + 1);
    let name = if name.starts_with(b"Node ") { text::words(name).nth(2)? } else { name };
    Some((name, value))
}

/// The bytes of a value, whose unit is always the same.
fn bytes(value: &[u8]) -> Option<u64> {
    let kibibytes = value.trim_ascii_start().strip_suffix(b" kB")?;
    text::number(kibibytes)?.checked_mul(1024)
}

impl MemoryCounters {
    fn file_pages(&self) -> Option<u64> {
        self.active_file?.checked_add(self.inactive_file?)
    }

    /// Pages of files that must be written before they can be dropped.
    pub fn unwritten_bytes(&self) -> u64 {
        self.dirty.unwrap_or(0).saturating_add(self.writeback.unwrap_or(0))
    }

    /// Memory that can be given back by the kernel itself.
    fn kernel_reclaimable(&self) -> u64 {
        self.reclaimable.or(self.slab_reclaimable).unwrap_or(0)
    }

    /// The most that `MemAvailable` can be: free, pages of files, reclaimable kernel memory.
    pub fn available_ceiling_bytes(&self) -> Option<u64> {
        let ceiling = self.free?.checked_add(self.file_pages()?)?;
        ceiling.checked_add(self.kernel_reclaimable())
    }

    /// Estimate of available memory where the kernel gives none: of a NUMA node, or before 3.14.
    /// Like the kernel's, it counts pages that wait to be written.
    pub fn derived_available_bytes(&self) -> Option<u64> {
        let kernel = self.slab_reclaimable.unwrap_or(0) / 2;
        self.free?.checked_add(self.file_pages()?)?.checked_add(kernel)
    }

    /// Bytes used by everything, stores included: the sum of the kinds that cannot be dropped, and
    /// of what the kernel keeps for itself. Independent of `MemFree` and `MemAvailable`. Blind to
    /// pages that drivers took straight from the allocator.
    pub fn used_kinds_bytes(&self, zones: Option<&Zones>) -> Option<u64> {
        let stacks_and_vmalloc = self.vmalloc_used.max(self.kernel_stack).unwrap_or(0);
        let kinds = [
            self.anonymous?,
            self.shared?,
            self.slab_unreclaimable?,
            self.page_tables.unwrap_or(0),
            self.secondary_page_tables.unwrap_or(0),
            stacks_and_vmalloc,
            self.per_cpu.unwrap_or(0),
            self.bounce.unwrap_or(0),
            self.huge_pool.unwrap_or(0),
            self.unwritten_bytes(),
            zones.map_or(0, |zones| self.kept_by_kernel(zones)),
        ];
        kinds.into_iter().try_fold(0_u64, u64::checked_add)
    }

    /// What `MemAvailable` leaves out on purpose: the reserve, and of page cache and reclaimable
    /// kernel memory half, at most the low watermark each (`si_mem_available`).
    fn kept_by_kernel(&self, zones: &Zones) -> u64 {
        let half = |bytes: u64| (bytes / 2).min(zones.low_bytes);
        zones
            .reserve_bytes
            .saturating_add(half(self.file_pages().unwrap_or(0)))
            .saturating_add(half(self.kernel_reclaimable()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_with_and_without_a_node() {
        let counters = MemoryCounters::parse(b"MemTotal: 8 kB\nNode 1 MemFree:   4 kB\nShmem: 1\n");
        assert_eq!((counters.total, counters.free), (Some(8192), Some(4096)));
        assert_eq!(counters.shared, None, "a field without its unit is not what it seems");
    }

    #[test]
    fn a_value_that_overflows_or_was_cut_off_is_missing() {
        let text = b"MemTotal: 18446744073709551615 kB\nMemFree: 12 kB\nMemAvailable: 12";
        let counters = MemoryCounters::parse(text);
        assert_eq!((counters.total, counters.free, counters.available), (None, Some(12288), None));
    }

    #[test]
    fn the_second_estimate_needs_its_main_kinds() {
        let text = b"AnonPages: 10 kB\nShmem: 5 kB\nSUnreclaim: 1 kB\nKernelStack: 2 kB\n\
            VmallocUsed: 3 kB\nHugetlb: 4 kB\nDirty: 1 kB\n";
        let counters = MemoryCounters::parse(text);
        assert_eq!(counters.used_kinds_bytes(None), Some(24 << 10));
        let zones = Zones { reserve_bytes: 1024, ..Zones::default() };
        assert_eq!(counters.used_kinds_bytes(Some(&zones)), Some(25 << 10));
        assert_eq!(MemoryCounters::parse(b"AnonPages: 10 kB\n").used_kinds_bytes(None), None);
    }
}
