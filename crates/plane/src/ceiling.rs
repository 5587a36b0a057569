//! Reads ceilings as the job sends them, and refuses whatever could not be meant for this node now.
//! Pure: anybody may have written a message, so nothing in it is believed.

use serde::Deserialize;
use tidepool_control::actuator::{OWN_STORE, ObservedState};
use tidepool_proto::control::CEILING_LEASE_MS_MAX;
use tidepool_proto::plane::StoreCeiling;

use crate::others::OtherStore;

/// The form of ceilings that is understood.
const FORM: u64 = 1;
/// Shortest lease: a store that shrinks and grows with each message serves nobody.
const LEASE_MS_MIN: u64 = 1000;
/// Longest message that is looked at.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Longest name of a run of the job, and of a policy.
const NAME_BYTES_MAX: usize = 128;

/// Why a ceiling was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The message is longer than any ceiling.
    Size,
    /// It is no ceiling of a form that is understood.
    Form,
    /// It is of another cluster.
    Cluster,
    /// It is of another node than its key says.
    Node,
    /// Its lease is too short, or too long.
    Lease,
    /// It has no ceiling of a store of this node.
    Store,
    /// Its bytes are outside of the limits of the store.
    Range,
    /// It answers no sample of this agent, or one that is older than its lease.
    Sample,
    /// Its number is not above the last one.
    Number,
    /// Another run of the job is followed.
    Plane,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 10] = [
        Refusal::Size,
        Refusal::Form,
        Refusal::Cluster,
        Refusal::Node,
        Refusal::Lease,
        Refusal::Store,
        Refusal::Range,
        Refusal::Sample,
        Refusal::Number,
        Refusal::Plane,
    ];

    /// The stable name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Size => "size",
            Refusal::Form => "form",
            Refusal::Cluster => "cluster",
            Refusal::Node => "node",
            Refusal::Lease => "lease",
            Refusal::Store => "store",
            Refusal::Range => "range",
            Refusal::Sample => "sample",
            Refusal::Number => "number",
            Refusal::Plane => "plane",
        }
    }

    /// What it is, in words.
    pub fn words(self) -> &'static str {
        match self {
            Refusal::Size => "the message is longer than any ceiling",
            Refusal::Form => "it is no ceiling of a form that is understood",
            Refusal::Cluster => "it is of another cluster",
            Refusal::Node => "it is of another node than its key says",
            Refusal::Lease => "its lease is under a second, or too long",
            Refusal::Store => "it has no ceiling of a store of this node",
            Refusal::Range => "its bytes are outside of the limits of the store",
            Refusal::Sample => "it answers no sample of ours, or an old one",
            Refusal::Number => "its number is not above the last one",
            Refusal::Plane => "another run of the job is followed",
        }
    }
}

/// What ceilings are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a> {
    /// Cluster of this node.
    pub cluster: &'a str,
    /// Its name.
    pub node: &'a str,
    /// Its samples; `None` where collectd sends them.
    pub samples: Option<OwnSamples<'a>>,
    /// The clock of this node, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Its store.
    pub store: ObservedState,
    /// Other stores under control on it.
    pub others: &'a [OtherStore],
}

/// Samples that this agent sent.
#[derive(Clone, Copy, Debug)]
pub struct OwnSamples<'a> {
    /// This start of the agent.
    pub start: &'a str,
    /// Number of the last one.
    pub last_number: u64,
    /// Time between two.
    pub step_ms: u64,
}

/// A ceiling that may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// Run of the job.
    pub plane: String,
    /// Rises within the run.
    pub number: u64,
    /// Most bytes of each store of the node that it names.
    pub stores: Vec<StoreCeiling>,
    /// How long it holds.
    pub lease_ms: u64,
    /// Policy that decided.
    pub policy: String,
}

// Other fields are for people; clocks of other machines are compared with nothing.
#[derive(Deserialize)]
struct Message {
    form: u64,
    cluster: String,
    node: String,
    plane: String,
    number: u64,
    sample_start: String,
    sample_number: u64,
    sample_at_ms: u64,
    lease_ms: u64,
    policy: String,
    stores: Vec<StoreCeiling>,
}

/// Reads a message with the key of this node.
pub fn read(message: &[u8], own: &Own<'_>) -> Result<Ceiling, Refusal> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Refusal::Size);
    }
    let message: Message = serde_json::from_slice(message).map_err(|_| Refusal::Form)?;
    let is_name = |text: &str| text.len() <= NAME_BYTES_MAX && !text.contains(char::is_control);
    if message.form != FORM || !is_name(&message.plane) || !is_name(&message.policy) {
        return Err(Refusal::Form);
    }
    if message.cluster != own.cluster {
        return Err(Refusal::Cluster);
    }
    if message.node != own.node {
        return Err(Refusal::Node);
    }
    if !(LEASE_MS_MIN..=CEILING_LEASE_MS_MAX).contains(&message.lease_ms) {
        return Err(Refusal::Lease);
    }
    if !answers(&message, own) {
        return Err(Refusal::Sample);
    }
    Ok(Ceiling {
        stores: ours(message.stores, own)?,
        plane: message.plane,
        number: message.number,
        lease_ms: message.lease_ms,
        policy: message.policy,
    })
}

/// Of the ceilings those of stores of this node: its own, and others under control that it names.
fn ours(mut stores: Vec<StoreCeiling>, own: &Own<'_>) -> Result<Vec<StoreCeiling>, Refusal> {
    let state = |name: &str| match name {
        OWN_STORE => Some(own.store),
        _ => own.others.iter().find(|other| other.name == name).map(|other| other.state),
    };
    stores.retain(|store| state(&store.name).is_some());
    stores.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    // Of two that say something else neither can be meant.
    let is_twice = stores.windows(2).any(|pair| pair[0].name == pair[1].name);
    if is_twice || !stores.iter().any(|store| store.name == OWN_STORE) {
        return Err(Refusal::Store);
    }
    let is_within = |store: &StoreCeiling| {
        state(&store.name)
            .is_some_and(|it| (it.min_bytes..=it.max_bytes).contains(&store.ceiling_bytes))
    };
    if !stores.iter().all(is_within) {
        return Err(Refusal::Range);
    }
    Ok(stores)
}

/// Whether it answers a sample that this agent sent, less than its lease ago by the agent's own
/// count; or one of collectd, which has no start, by the clock that both have on this node.
fn answers(message: &Message, own: &Own<'_>) -> bool {
    let Some(samples) = &own.samples else {
        let age_ms = own.now_ms.abs_diff(message.sample_at_ms);
        return message.sample_start.is_empty() && age_ms <= message.lease_ms;
    };
    let Some(steps) = samples.last_number.checked_sub(message.sample_number) else { return false };
    let age_ms = steps.saturating_mul(samples.step_ms);
    message.sample_start == samples.start && age_ms <= message.lease_ms
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn own() -> Own<'static> {
        let samples = OwnSamples { start: "s", last_number: 100, step_ms: 100 };
        let store =
            ObservedState { min_bytes: 8 * MIB, max_bytes: 64 * MIB, ..ObservedState::default() };
        Own { cluster: "c", node: "n", samples: Some(samples), now_ms: 10_000, store, others: &[] }
    }

    fn of(name: &str, ceiling_bytes: u64) -> StoreCeiling {
        StoreCeiling { name: name.into(), ceiling_bytes }
    }

    /// As the job sends it.
    fn right() -> Value {
        json!({
            "form": 1, "cluster": "c", "node": "n", "plane": "p", "number": 7,
            "sample_start": "s", "sample_number": 99, "sample_at_ms": 1, "at_ms": 2,
            "lease_ms": 5000, "policy": "dynims",
            "stores": [
                {"name": "other", "ceiling_bytes": 1, "floor_bytes": 0},
                {"name": "tidepool", "ceiling_bytes": 32 * MIB, "floor_bytes": 0},
            ],
        })
    }

    fn with(field: &str, value: Value) -> Vec<u8> {
        let mut message = right();
        message[field] = value;
        serde_json::to_vec(&message).unwrap()
    }

    fn refusal(field: &str, value: Value) -> Option<Refusal> {
        read(&with(field, value), &own()).err()
    }

    fn bytes(value: Value) -> Option<Refusal> {
        refusal("stores", json!([{"name": "tidepool", "ceiling_bytes": value}]))
    }

    #[test]
    fn a_ceiling_of_the_job_is_read() {
        let ceiling = read(&serde_json::to_vec(&right()).unwrap(), &own()).unwrap();
        let expected = Ceiling {
            plane: "p".into(),
            number: 7,
            stores: vec![of(OWN_STORE, 32 * MIB)],
            lease_ms: 5000,
            policy: "dynims".into(),
        };
        assert_eq!(ceiling, expected);
        assert_eq!(refusal("number", json!(u64::MAX)), None, "numbers are for the follower");
    }

    #[test]
    fn bytes_outside_of_the_limits_of_the_store_are_refused() {
        assert_eq!((bytes(json!(8 * MIB)), bytes(json!(64 * MIB))), (None, None));
        for outside in [0, 8 * MIB - 1, 64 * MIB + 1, u64::MAX] {
            assert_eq!(bytes(json!(outside)), Some(Refusal::Range), "{outside}");
        }
        for wrong in [json!(-1), json!("9"), json!(1e30), json!(3.5e7), json!(null), json!([])] {
            assert_eq!(bytes(wrong.clone()), Some(Refusal::Form), "{wrong}");
        }
    }

    #[test]
    fn ceilings_of_other_stores_under_control_are_taken_within_their_limits() {
        let state =
            ObservedState { min_bytes: MIB, max_bytes: 9 * MIB, ..ObservedState::default() };
        let others = [OtherStore { name: "other".into(), state, page_cache_bytes: 0 }];
        let own = Own { others: &others, ..own() };
        let read = |ceiling_bytes: u64| {
            let stores = json!([
                {"name": "tidepool", "ceiling_bytes": 32 * MIB},
                {"name": "other", "ceiling_bytes": ceiling_bytes},
            ]);
            super::read(&with("stores", stores), &own).map(|ceiling| ceiling.stores)
        };
        assert_eq!(read(5 * MIB), Ok(vec![of("other", 5 * MIB), of(OWN_STORE, 32 * MIB)]));
        for outside in [0, MIB - 1, 9 * MIB + 1] {
            assert_eq!(read(outside), Err(Refusal::Range), "{outside}");
        }
        let one = json!([{"name": "other", "ceiling_bytes": MIB}]);
        assert_eq!(
            super::read(&with("stores", one), &own),
            Err(Refusal::Store),
            "and none of ours"
        );
    }

    #[test]
    fn what_is_not_meant_for_this_node_is_refused() {
        assert_eq!(refusal("form", json!(2)), Some(Refusal::Form));
        assert_eq!(refusal("cluster", json!("d")), Some(Refusal::Cluster));
        assert_eq!(refusal("node", json!("m")), Some(Refusal::Node));
        assert_eq!(refusal("plane", json!("a\u{7}b")), Some(Refusal::Form));
        assert_eq!(refusal("policy", json!("x".repeat(129))), Some(Refusal::Form));
        assert_eq!(refusal("stores", json!([])), Some(Refusal::Store));
        let twice = json!({"name": "tidepool", "ceiling_bytes": 32 * MIB});
        assert_eq!(refusal("stores", json!([twice.clone(), twice])), Some(Refusal::Store));
        let unknown = json!([{"name": "other", "ceiling_bytes": 32 * MIB}]);
        assert_eq!(refusal("stores", unknown), Some(Refusal::Store));
    }

    #[test]
    fn leases_end() {
        let year_ms = 365 * 24 * 3_600_000_u64;
        for lease_ms in [0, LEASE_MS_MIN - 1, CEILING_LEASE_MS_MAX + 1, year_ms, u64::MAX] {
            assert_eq!(refusal("lease_ms", json!(lease_ms)), Some(Refusal::Lease));
        }
        assert_eq!(refusal("lease_ms", json!(CEILING_LEASE_MS_MAX)), None);
    }

    #[test]
    fn an_answer_to_no_sample_of_ours_or_to_an_old_one_is_refused() {
        assert_eq!(refusal("sample_start", json!("t")), Some(Refusal::Sample), "another start");
        assert_eq!(refusal("sample_start", json!("")), Some(Refusal::Sample), "collectd's");
        assert_eq!(refusal("sample_number", json!(101)), Some(Refusal::Sample), "not sent yet");
        assert_eq!(refusal("sample_number", json!(50)), None, "5 s ago");
        assert_eq!(refusal("sample_number", json!(49)), Some(Refusal::Sample), "older");
        let of_collectd = |now_ms| Own { samples: None, now_ms, ..own() };
        let read_at = |now_ms| read(&with("sample_start", json!("")), &of_collectd(now_ms)).err();
        assert_eq!((read_at(1), read_at(5001)), (None, None), "within its lease");
        assert_eq!(read_at(5002), Some(Refusal::Sample), "older");
        let of_collectd = of_collectd(1);
        assert_eq!(read(&with("form", json!(1)), &of_collectd), Err(Refusal::Sample));
    }

    #[test]
    fn garbage_is_refused_unread() {
        let long = vec![b'['; MESSAGE_BYTES_MAX + 1];
        assert_eq!(read(&long, &own()), Err(Refusal::Size));
        for garbage in [&b""[..], b"NaN", b"{}", b"[]", b"\xff\xfe", &long[1..], b"{\"form\":1"] {
            assert_eq!(read(garbage, &own()), Err(Refusal::Form));
        }
        let whole = serde_json::to_vec(&right()).unwrap();
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end], &own()), Err(Refusal::Form), "cut at {end}");
        }
        let twice = String::from_utf8(whole).unwrap().replacen('{', "{\"number\":1,", 1);
        assert_eq!(read(twice.as_bytes(), &own()), Err(Refusal::Form), "a field twice");
    }
}
