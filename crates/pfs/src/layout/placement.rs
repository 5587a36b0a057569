//! [`Placement`]: which data server a read is the work of, as far as its layout tells.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::Layout;

/// A data server; equal where reads are surely, or by all that is known, the work of the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerKey(u64);

/// Where the bytes of one file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    stripe_bytes: u64,
    /// Those that have the stripes in turn; empty where each stripe may be anywhere.
    servers: Box<[ServerKey]>,
    /// Of each stripe, where each is placed for itself.
    placed: Box<[Option<ServerKey>]>,
    file: u64,
}

fn key(parts: impl std::hash::Hash) -> ServerKey {
    ServerKey(BuildHasherDefault::<DefaultHasher>::default().hash_one(parts))
}

impl Placement {
    /// By a layout of the file with this number; `None` where it tells nothing to go by.
    pub fn of(layout: &Layout, file: u64) -> Option<Placement> {
        let named: Vec<ServerKey> = layout.servers.iter().map(key).collect();
        let count = layout.stripe_count.filter(|count| *count > 0);
        let servers = match count {
            Some(count) if named.len() == count as usize => named,
            // Several files may have the same servers; nothing tells.
            Some(count) => (0..count).map(|index| key((file, index))).collect(),
            None => Vec::new(),
        };
        let is_one = servers.len() == 1;
        let stripe_bytes = match layout.stripe_size_bytes.filter(|bytes| *bytes > 0) {
            Some(bytes) => bytes,
            None if is_one => u64::MAX,
            None => return None,
        };
        let placed = layout.stripes.iter();
        let placed = placed.map(|server| (!server.is_empty()).then(|| key(server))).collect();
        Some(Placement { stripe_bytes, servers: servers.into(), placed, file })
    }

    /// The server of the stripe that holds `offset`. Where stripes are placed by hash, each counts
    /// as a server of its own: two of them are more often apart than two halves of one.
    pub fn server_of(&self, offset: u64) -> ServerKey {
        let stripe = offset / self.stripe_bytes;
        let placed = usize::try_from(stripe).ok().and_then(|stripe| self.placed.get(stripe));
        match self.servers.len() as u64 {
            0 => placed.copied().flatten().unwrap_or_else(|| key((self.file, stripe))),
            count => self.servers[(stripe % count) as usize],
        }
    }

    /// Bytes of a stripe; `None` where the file is on one server.
    pub fn stripe_bytes(&self) -> Option<u64> {
        (self.servers.len() != 1).then_some(self.stripe_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: Option<u64>, count: Option<u32>, servers: &[&str]) -> Layout {
        let servers = servers.iter().map(|it| (*it).to_owned()).collect();
        Layout { stripe_size_bytes: size, stripe_count: count, servers, ..Layout::default() }
    }

    #[test]
    fn servers_in_turn_by_hash_and_alone() {
        let in_turn = layout(Some(10), Some(2), &["a", "b"]);
        let [one, other] = [1, 2].map(|file| Placement::of(&in_turn, file).unwrap());
        assert_eq!(one.server_of(0), other.server_of(29), "the same server of two files");
        assert_ne!(one.server_of(0), one.server_of(10));
        let nameless = Placement::of(&layout(Some(10), Some(2), &[]), 1).unwrap();
        assert_eq!(nameless.server_of(5), nameless.server_of(25));
        assert_ne!(nameless.server_of(5), nameless.server_of(15));
        let hashed = Placement::of(&layout(Some(10), None, &[]), 1).unwrap();
        assert_eq!(hashed.server_of(20), hashed.server_of(29));
        assert_ne!(hashed.server_of(0), hashed.server_of(20));
        let [one, other] =
            ["a", "b"].map(|it| Placement::of(&layout(None, Some(1), &[it]), 1).unwrap());
        assert_eq!(one.server_of(0), one.server_of(u64::MAX));
        assert_ne!(one.server_of(0), other.server_of(0));
        let stripes = ["a", "b", "", "a"].map(str::to_owned).into();
        let placed = Layout { stripes, ..layout(Some(10), None, &[]) };
        let [one, other] = [1, 2].map(|file| Placement::of(&placed, file).unwrap());
        assert_eq!(one.server_of(0), other.server_of(39), "the same server of two files");
        assert_ne!(one.server_of(0), one.server_of(10));
        assert_ne!(one.server_of(20), other.server_of(20), "not known");
        assert_eq!(one.stripe_bytes(), Some(10));
        assert_eq!(Placement::of(&layout(None, Some(4), &[]), 1), None);
        assert_eq!(Placement::of(&layout(None, None, &[]), 1), None);
    }
}
