//! `/proc/vmstat`: events that tell that memory is short already. Only brakes and alarms use them.

use super::text;

/// Counts since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Pages swapped out.
    pub swapped_out_pages: Option<u64>,
    /// Pages of files that were dropped and read again.
    pub refaulted_pages: Option<u64>,
    /// Allocations that had to free memory themselves.
    pub allocation_stalls: Option<u64>,
}

impl Events {
    /// Reads the text of `/proc/vmstat`. Kernels before 5.9 have one count of refaults.
    pub fn parse(text: &[u8]) -> Self {
        let mut events = Events::default();
        text::counters(text, |name, value| match name {
            b"pswpout" => events.swapped_out_pages = Some(value),
            b"workingset_refault_file" | b"workingset_refault" => {
                events.refaulted_pages = Some(value);
            }
            _ if name.starts_with(b"allocstall") => {
                let sum = events.allocation_stalls.unwrap_or(0);
                events.allocation_stalls = Some(sum.saturating_add(value));
            }
            _ => {}
        });
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_names_are_known() {
        let new = b"workingset_refault_anon 9\nworkingset_refault_file 4\npswpout 2\n\
            allocstall_dma 1\nallocstall_normal 2\n";
        let events = Events::parse(new);
        assert_eq!((events.swapped_out_pages, events.refaulted_pages), (Some(2), Some(4)));
        assert_eq!(events.allocation_stalls, Some(3));
        assert_eq!(Events::parse(b"workingset_refault 7\n").refaulted_pages, Some(7));
        assert_eq!(Events::parse(b"pswpout -1\n"), Events::default());
    }
}
