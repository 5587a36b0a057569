//! Writes samples as the job reads them, into a buffer that stays: an agent makes ten a second for
//! years.

use std::io::Write;

use tidepool_control::actuator::OWN_STORE;
pub use tidepool_control::actuator::ObservedState;

use crate::jobs::Jobs;
use crate::meminfo::MachineMemory;
use crate::others::{OtherStore, Others};

/// The form of samples.
const FORM: u64 = 1;

/// Memory that moved by less than this part of all is as it was.
const MOVED_SHARE: u64 = 1024;
/// Memory that moved by more than this part of all is news.
const JUMPED_SHARE: u64 = 400;

/// How much moved from one sample to a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// Nothing that matters to anybody.
    Rests,
    /// The store, or more of the memory than programs take and give all the time.
    Moves,
    /// So much memory that whoever decides should know at once: what waits in a message is decided
    /// on a view of the store that is old.
    Jumps,
}

/// What one sample says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Rises within a start of the agent.
    pub number: u64,
    /// The node's clock, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The machine.
    pub memory: MachineMemory,
    /// The store; `None` while the node is away.
    pub store: Option<ObservedState>,
    /// Other stores under control.
    pub others: Others,
    /// Jobs on the node.
    pub jobs: Jobs,
}

impl Sample {
    /// Memory that jobs use: all that is neither available nor the store's.
    fn demand_bytes(&self) -> u64 {
        let MachineMemory { total_bytes, available_bytes } = self.memory;
        let used_bytes = available_bytes.map_or(0, |available| total_bytes - available);
        let others = self.others.iter().map(OtherStore::occupied_bytes);
        let own_bytes = self.store.map_or(0, |store| store.resident_bytes);
        others.fold(used_bytes.saturating_sub(own_bytes), u64::saturating_sub)
    }

    /// How much moved since an earlier one.
    pub fn movement(&self, earlier: &Sample) -> Movement {
        let sizes = |sample: &Sample| {
            sample
                .store
                .map(|it| (it.capacity_bytes, it.resident_bytes, it.min_bytes, it.max_bytes))
        };
        let available = |sample: &Sample| sample.memory.available_bytes.unwrap_or(0);
        let moved_bytes = available(self).abs_diff(available(earlier));
        let is_beyond = |share| moved_bytes > self.memory.total_bytes / share;
        let are_stores_as_before = sizes(self) == sizes(earlier) && self.others == earlier.others;
        match is_beyond(MOVED_SHARE) || !are_stores_as_before {
            _ if is_beyond(JUMPED_SHARE) => Movement::Jumps,
            true => Movement::Moves,
            false => Movement::Rests,
        }
    }
}

/// Who the samples are of; all that is the same in each of them.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Cluster of the node.
    pub cluster: String,
    /// Name of the node.
    pub node: String,
    /// Its rack, if known.
    pub rack: Option<String>,
    /// This start of the agent.
    pub start: String,
    /// Time between two samples.
    pub step_ms: u64,
}

/// Writes messages of one node.
pub struct SampleWriter {
    beginning: Vec<u8>,
    message: Vec<u8>,
}

impl SampleWriter {
    /// For the samples of `origin`.
    pub fn new(origin: &Origin) -> SampleWriter {
        let Origin { cluster, node, rack, start, step_ms } = origin;
        let mut head = serde_json::json!({
            "form": FORM,
            "cluster": cluster,
            "node": node,
            "start": start,
            "interval_ms": step_ms,
        });
        if let Some(rack) = rack {
            head["rack"] = rack.as_str().into();
        }
        let mut beginning = head.to_string().into_bytes();
        // The rest of the object comes behind it.
        beginning.pop();
        SampleWriter { beginning, message: Vec::with_capacity(8192) }
    }

    /// A message with these samples.
    pub fn message(&mut self, samples: &[Sample]) -> &[u8] {
        self.message.clear();
        for sample in samples {
            self.message.push(if self.message.is_empty() { b'[' } else { b',' });
            self.message.extend_from_slice(&self.beginning);
            put(&mut self.message, sample).expect("memory takes all that is written");
        }
        self.message.push(b']');
        &self.message
    }
}

/// Writes what differs from one sample to the next.
fn put(out: &mut Vec<u8>, sample: &Sample) -> std::io::Result<()> {
    let Sample { number, at_ms, memory, store, others, jobs } = sample;
    let total_bytes = memory.total_bytes;
    let demand_bytes = sample.demand_bytes();
    write!(
        out,
        ",\"number\":{number},\"at_ms\":{at_ms},\"memory_total_bytes\":{total_bytes},\
         \"demand_bytes\":{demand_bytes}"
    )?;
    if let Some(available_bytes) = memory.available_bytes {
        write!(out, ",\"available_bytes\":{available_bytes}")?;
    }
    out.extend_from_slice(b",\"stores\":[");
    // A node that is away governs no others.
    if let Some(store) = store {
        write!(out, "{{\"name\":\"{OWN_STORE}\"")?;
        put_store(out, store)?;
        for other in others.iter() {
            out.extend_from_slice(b",{\"name\":");
            serde_json::to_writer(&mut *out, &other.name)?;
            put_store(out, &other.state)?;
        }
    }
    out.push(b']');
    if !jobs.is_empty() {
        out.extend_from_slice(b",\"jobs\":");
        out.extend_from_slice(jobs.as_bytes());
    }
    out.push(b'}');
    Ok(())
}

/// Writes a store behind its name.
fn put_store(out: &mut Vec<u8>, store: &ObservedState) -> std::io::Result<()> {
    let ObservedState { capacity_bytes, resident_bytes, held_bytes, .. } = store;
    let ObservedState { min_bytes, max_bytes, block_bytes, .. } = store;
    write!(
        out,
        ",\"capacity_bytes\":{capacity_bytes},\"resident_bytes\":{resident_bytes},\
         \"held_bytes\":{held_bytes},\"min_bytes\":{min_bytes},\"max_bytes\":{max_bytes},\
         \"block_bytes\":{block_bytes}}}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_moved_is_told_by_how_much() {
        let memory = MachineMemory { total_bytes: 102_400, available_bytes: Some(5000) };
        let store = Some(ObservedState { capacity_bytes: 9, ..ObservedState::default() });
        let sample = Sample { memory, store, ..Sample::default() };
        let moved = |other: Sample| other.movement(&sample);
        let sample_with = |memory| Sample { memory, ..sample.clone() };
        let to = |available| {
            let memory = MachineMemory { available_bytes: Some(available), ..memory };
            moved(sample_with(memory))
        };
        assert_eq!(moved(Sample { number: 8, at_ms: 9, ..sample.clone() }), Movement::Rests);
        assert_eq!([5100, 5101, 4899].map(to), {
            use Movement::{Moves, Rests};
            [Rests, Moves, Moves]
        });
        assert_eq!([5256, 5257, 4743].map(to), {
            use Movement::{Jumps, Moves};
            [Moves, Jumps, Jumps]
        });
        assert_eq!(moved(Sample { store: None, ..sample.clone() }), Movement::Moves);
    }

    #[test]
    fn a_message_is_what_the_job_reads() {
        let origin = Origin {
            cluster: "site \"1\"".into(),
            node: "n".into(),
            rack: Some("r".into()),
            start: "s".into(),
            step_ms: 100,
        };
        let mut writer = SampleWriter::new(&origin);
        let memory = MachineMemory { total_bytes: 100, available_bytes: Some(40) };
        let store = ObservedState {
            capacity_bytes: 50,
            resident_bytes: 20,
            held_bytes: 3,
            min_bytes: 10,
            max_bytes: 60,
            block_bytes: 4,
        };
        let name = "cache \"1\"".to_owned();
        let other = OtherStore { name, state: store, page_cache_bytes: 5 };
        let sample = Sample {
            number: 7,
            at_ms: 9,
            memory,
            store: Some(store),
            others: Others::from([other]),
            jobs: Jobs::from(r#"[{"name":"7","user":"anna","bytes":9}]"#),
        };
        let nothing = MachineMemory { total_bytes: 100, available_bytes: None };
        let next = Sample { number: 8, store: None, memory: nothing, ..sample.clone() };
        let read: Value = serde_json::from_slice(writer.message(&[sample.clone(), next])).unwrap();
        let expected = serde_json::json!({
            "form": 1, "cluster": "site \"1\"", "node": "n", "rack": "r", "start": "s",
            "interval_ms": 100, "number": 7, "at_ms": 9, "memory_total_bytes": 100,
            "available_bytes": 40, "demand_bytes": 25,
            "stores": [{"name": "tidepool", "capacity_bytes": 50, "resident_bytes": 20,
                "held_bytes": 3, "min_bytes": 10, "max_bytes": 60, "block_bytes": 4},
                {"name": "cache \"1\"", "capacity_bytes": 50, "resident_bytes": 20,
                "held_bytes": 3, "min_bytes": 10, "max_bytes": 60, "block_bytes": 4}],
            "jobs": [{"name": "7", "user": "anna", "bytes": 9}],
        });
        assert_eq!(read[0], expected);
        assert_eq!(
            (&read[1]["stores"], read[1].get("available_bytes")),
            (&Value::Array(vec![]), None)
        );
        let again: Value = serde_json::from_slice(writer.message(&[sample])).unwrap();
        assert_eq!(again, Value::Array(vec![read[0].clone()]), "nothing of the last message");
    }
}
