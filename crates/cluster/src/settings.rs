//! Settings of a node in the cluster, and what it tells of itself.

use std::time::Duration;

use crate::{NodeName, Time};

/// Settings. The default is the measured one: a crash is noticed in about 1.3 s, 2 s at the most.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Name of the cluster: datagrams of another are ignored.
    pub cluster_name: String,
    /// How often a member probes one other.
    pub probe_period: Duration,
    /// How long a probe waits before others are asked to probe; less than `probe_period`.
    pub probe_rtt: Duration,
    /// How long a suspect may take to contradict before it is down.
    pub suspect_time: Duration,
    /// How often news are passed on to a few members.
    pub gossip_period: Duration,
    /// How often the node announces itself to a member.
    pub announce_period: Duration,
    /// How often the node announces itself to a member that is down.
    pub announce_to_down_period: Duration,
    /// How often each piece of news is passed on.
    pub transmissions_max: u8,
    /// Longest datagram, bytes.
    pub datagram_bytes_max: usize,
    /// How long news about blocks wait for more before they are announced.
    pub announce_delay: Duration,
    /// News about blocks that are announced without waiting.
    pub announce_batch_max: usize,
    /// Entries announced in one call.
    pub announce_entries_max: usize,
    /// Announcements that are under way at once, to all homes.
    pub announce_calls_max: usize,
    /// Least time between two calls of a re-announcement to one home.
    pub reannounce_pause: Duration,
    /// How long a plan of a home is remembered.
    pub plan_ttl: Duration,
    /// Plans remembered at most.
    pub plans_max: usize,
    /// How long a reader counts as one beside others, and a filler stays one.
    pub reader_ttl: Duration,
    /// Records of readers at most.
    pub readers_max: usize,
    /// Memory for entries about files of which this node is the home, bytes.
    pub max_entries_bytes: usize,
    /// How long a member that is down keeps its splits.
    pub owner_grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cluster_name: "tidepool".into(),
            probe_period: Duration::from_millis(300),
            probe_rtt: Duration::from_millis(100),
            suspect_time: Duration::from_millis(600),
            gossip_period: Duration::from_millis(100),
            announce_period: Duration::from_secs(2),
            announce_to_down_period: Duration::from_secs(3),
            transmissions_max: 20,
            datagram_bytes_max: 1_200,
            announce_delay: Duration::from_millis(20),
            announce_batch_max: 4_096,
            announce_entries_max: 4_096,
            announce_calls_max: 64,
            reannounce_pause: Duration::from_millis(50),
            plan_ttl: Duration::from_secs(2),
            plans_max: 16_384,
            reader_ttl: Duration::from_secs(5),
            readers_max: 16_384,
            max_entries_bytes: 64 << 20,
            owner_grace: Duration::from_secs(60),
        }
    }
}

/// What a node thinks of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It answers.
    Alive,
    /// It did not answer; it still counts as a member.
    Suspect,
    /// It is declared dead.
    Down,
    /// It said good-bye.
    Left,
    /// It is in the list and has not been heard of.
    NeverSeen,
}

/// A member as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its name.
    pub name: NodeName,
    /// What this node thinks of it.
    pub state: MemberState,
    /// Its incarnation, 0 while it has not been seen.
    pub incarnation: u64,
    /// Since when it has been in this state.
    pub since: Time,
}

/// Counts since the start, and sizes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that were no message of this cluster.
    pub garbage_datagrams: u64,
    /// Requests that could not be read.
    pub garbage_requests: u64,
    /// Replies that could not be read.
    pub garbage_replies: u64,
    /// Datagrams received and understood.
    pub datagrams_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Bytes of datagrams sent.
    pub datagram_bytes_sent: u64,
    /// Calls with announcements sent.
    pub announcements_sent: u64,
    /// Calls with announcements served.
    pub announcements_served: u64,
    /// Announcements for files of which this node is not the home.
    pub misdirected: u64,
    /// Calls that failed.
    pub calls_failed: u64,
    /// Lookups of other nodes served.
    pub lookups_served: u64,
    /// Lookups of this node answered from its own memory.
    pub lookups_known: u64,
    /// Lookups of this node that asked a home.
    pub lookups_asked: u64,
    /// Files of which this node keeps entries as their home.
    pub files: u64,
    /// Blocks in these entries, each as often as it is held.
    pub entries: u64,
    /// Memory of these entries, bytes.
    pub entry_bytes: u64,
    /// Files whose entries were forgotten for want of memory.
    pub files_forgotten: u64,
    /// Files of which this node holds blocks and keeps count of them for the homes.
    pub held_files: u64,
    /// Members that came up.
    pub ups: u64,
    /// Members that went down or left.
    pub downs: u64,
}
