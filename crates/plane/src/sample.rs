//! Writes samples as the job reads them, into a buffer that stays: an agent makes ten a second for
//! years.

use std::io::Write;

use tidepool_control::actuator::{OWN_STORE, ObservedState};

use crate::meminfo::MachineMemory;

/// The form of samples.
const FORM: u64 = 1;

/// What one sample says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Rises within a start of the agent.
    pub number: u64,
    /// The node's clock, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The machine.
    pub memory: MachineMemory,
    /// The store; `None` while the node is away.
    pub store: Option<ObservedState>,
}

impl Sample {
    /// Memory that jobs use: all that is neither available nor the store's.
    fn demand_bytes(&self) -> u64 {
        let MachineMemory { total_bytes, available_bytes } = self.memory;
        let used_bytes = available_bytes.map_or(0, |available| total_bytes - available);
        used_bytes.saturating_sub(self.store.map_or(0, |store| store.resident_bytes))
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

/// Writes samples of one node.
pub struct SampleWriter {
    beginning: Vec<u8>,
    message: Vec<u8>,
    samples: u64,
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
        SampleWriter { beginning, message: Vec::with_capacity(1024), samples: 0 }
    }

    /// Adds a sample to the message.
    pub fn add(&mut self, sample: &Sample) {
        self.message.push(if self.samples == 0 { b'[' } else { b',' });
        self.message.extend_from_slice(&self.beginning);
        self.samples += 1;
        let Sample { number, at_ms, memory, store } = sample;
        let total_bytes = memory.total_bytes;
        let demand_bytes = sample.demand_bytes();
        let out = &mut self.message;
        let taken = "memory takes all that is written";
        write!(
            out,
            ",\"number\":{number},\"at_ms\":{at_ms},\"memory_total_bytes\":{total_bytes},\
             \"demand_bytes\":{demand_bytes}"
        )
        .expect(taken);
        if let Some(available_bytes) = memory.available_bytes {
            write!(out, ",\"available_bytes\":{available_bytes}").expect(taken);
        }
        out.extend_from_slice(b",\"stores\":[");
        if let Some(store) = store {
            let ObservedState { capacity_bytes, resident_bytes, held_bytes, .. } = store;
            let ObservedState { min_bytes, max_bytes, block_bytes, .. } = store;
            write!(
                out,
                "{{\"name\":\"{OWN_STORE}\",\"capacity_bytes\":{capacity_bytes},\
                 \"resident_bytes\":{resident_bytes},\"held_bytes\":{held_bytes},\
                 \"min_bytes\":{min_bytes},\"max_bytes\":{max_bytes},\
                 \"block_bytes\":{block_bytes}}}"
            )
            .expect(taken);
        }
        out.extend_from_slice(b"]}");
    }

    /// Samples in the message.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Hands the message to `send`, with the number of its samples, and begins the next one.
    pub fn send(&mut self, send: impl FnOnce(&[u8], u64)) {
        self.message.push(b']');
        send(&self.message, self.samples);
        self.message.clear();
        self.samples = 0;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

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
        let sample = Sample { number: 7, at_ms: 9, memory, store: Some(store) };
        writer.add(&sample);
        let nothing = MachineMemory { total_bytes: 100, available_bytes: None };
        writer.add(&Sample { number: 8, store: None, memory: nothing, ..sample });
        let mut read = Value::Null;
        writer.send(|message, samples| {
            assert_eq!(samples, 2);
            read = serde_json::from_slice(message).unwrap();
        });
        let expected = serde_json::json!({
            "form": 1, "cluster": "site \"1\"", "node": "n", "rack": "r", "start": "s",
            "interval_ms": 100, "number": 7, "at_ms": 9, "memory_total_bytes": 100,
            "available_bytes": 40, "demand_bytes": 40,
            "stores": [{"name": "tidepool", "capacity_bytes": 50, "resident_bytes": 20,
                "held_bytes": 3, "min_bytes": 10, "max_bytes": 60, "block_bytes": 4}],
        });
        assert_eq!(read[0], expected);
        assert_eq!(
            (&read[1]["stores"], read[1].get("available_bytes")),
            (&Value::Array(vec![]), None)
        );
        assert_eq!(writer.samples(), 0, "the next message is empty");
    }
}
