//! The list of nodes in etcd: each node puts its address there under a lease, and reads those of
//! the others. It is a list and nothing else: who is alive, nodes find out by themselves, so that
//! etcd may be away for as long as no node comes that nobody knows.
//!
//! Spoken is the JSON gateway of its version 3 (`/v3/kv/range` and so on), over plain HTTP: who
//! changes what is there can hide nodes and name strangers, whom the key keeps out.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tidepool_cluster::{Member, Roster};
use tidepool_proto::config::ClusterConfig;

use super::Cluster;

/// Begin of the option that names a list in etcd.
pub const SCHEME: &str = "etcd:";
/// How the option is written.
pub const GRAMMAR: &str = "etcd:http://HOST:2379[,http://HOST:2379][/PREFIX]";
/// Directory of keys where the option names none.
const PREFIX_DEFAULT: &str = "tidepool";
/// Seconds after which etcd forgets a node that does not say that it is there.
const LEASE_S: u64 = 60;
/// Time between two looks at the list; so long as etcd was not reached.
const INTERVALS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));
/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(100);
/// Longest list in bytes.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// A node's place in the list.
pub struct Etcd {
    agent: ureq::Agent,
    /// Servers, the one that answered last first.
    servers: Vec<String>,
    /// Begin of all keys of the cluster.
    directory: String,
    me: Member,
    port: u16,
    lease: Option<String>,
}

impl Etcd {
    /// Of the option's text after [`SCHEME`].
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str, config: &ClusterConfig, me: Member) -> Result<Self, String> {
        let bad = || format!("`{SCHEME}{text}` is not of the form {GRAMMAR}");
        let (mut servers, mut prefix) = (Vec::new(), PREFIX_DEFAULT);
        for part in text.split(',') {
            let address = part.trim().strip_prefix("http://").ok_or_else(bad)?;
            let (address, path) = address.split_once('/').unwrap_or((address, ""));
            if address.is_empty() || prefix != PREFIX_DEFAULT {
                return Err(bad());
            }
            let path = path.trim_matches('/');
            if !path.is_empty() {
                prefix = path;
            }
            servers.push(format!("http://{address}"));
        }
        let agent = ureq::Agent::config_builder().timeout_global(Some(LIMIT)).build().into();
        let directory = format!("{prefix}/{}/", config.cluster_name);
        Ok(Etcd { agent, servers, directory, me, port: config.peer_port, lease: None })
    }

    /// Asks one server after the other.
    fn ask(&mut self, what: &str, request: &Value) -> Result<Value, String> {
        let mut because = String::new();
        for _ in 0..self.servers.len() {
            let url = format!("{}/v3/{what}", self.servers[0]);
            let answer = self.agent.post(&url).send_json(request).and_then(|mut answer| {
                answer.body_mut().with_config().limit(LIST_BYTES_MAX).read_json::<Value>()
            });
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => because = format!("{url}: {error}"),
            }
            self.servers.rotate_left(1);
        }
        Err(because)
    }

    /// Says that this node is there, and reads who else is.
    pub fn refresh(&mut self) -> Result<Roster, String> {
        self.keep_lease()?;
        let end = self.directory.trim_end_matches('/').to_owned() + "0";
        let range = json!({ "key": coded(&self.directory), "range_end": coded(&end) });
        let answer = self.ask("kv/range", &range)?;
        let mut roster = Roster::default();
        let entries = answer["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
        for entry in entries.iter().filter_map(|entry| decoded(&entry["value"])) {
            match Roster::parse(&entry, self.port) {
                Ok(one) => _ = roster.merge(&one),
                Err(error) => tracing::debug!("an entry of the list in etcd is left out: {error}"),
            }
        }
        if let Some(other) = roster.get(&self.me.name).filter(|it| **it != self.me) {
            tracing::warn!(
                "another node at {}:{} has the name of this one in etcd, `{}`: set `node_name`",
                other.host,
                other.port,
                self.me.name
            );
        }
        Ok(roster)
    }

    fn keep_lease(&mut self) -> Result<(), String> {
        if let Some(lease) = &self.lease {
            let request = json!({ "ID": lease });
            let kept = self.ask("lease/keepalive", &request)?;
            // An ended one has no time left.
            if number(&kept["result"]["TTL"]).is_some_and(|seconds| seconds > 0) {
                return Ok(());
            }
            self.lease = None;
        }
        let granted = self.ask("lease/grant", &json!({ "TTL": LEASE_S }))?;
        let lease = granted["ID"].as_str().ok_or("it grants no lease")?.to_owned();
        let key = format!("{}{}", self.directory, self.me.name);
        let host = match self.me.host.contains(':') {
            true => format!("[{}]", self.me.host),
            false => self.me.host.clone(),
        };
        let value = format!("{}={host}:{}", self.me.name, self.me.port);
        self.ask("kv/put", &json!({ "key": coded(&key), "value": coded(&value), "lease": lease }))?;
        self.lease = Some(lease);
        Ok(())
    }

    /// Takes this node out of the list.
    pub fn leave(&mut self) {
        if let Some(lease) = self.lease.take() {
            let _ = self.ask("lease/revoke", &json!({ "ID": lease }));
        }
    }
}

fn coded(text: &str) -> String {
    STANDARD.encode(text)
}

fn decoded(value: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok()
}

/// etcd writes 64-bit numbers as texts.
fn number(value: &Value) -> Option<u64> {
    value.as_str().and_then(|text| text.parse().ok()).or_else(|| value.as_u64())
}

impl Cluster {
    /// Takes in what a list has that this node does not know yet.
    pub(super) fn merge_list(&self, found: &Roster) {
        let new = self.roster.write().merge(found);
        let mut members = self.members.lock();
        for name in &new {
            tracing::info!(node = %name, "it is in the list now");
            members.add_member(self.now(), name);
        }
        drop(members);
        self.signal.raise();
    }

    /// Keeps this node in the list and reads the others, until the node stops.
    pub(super) fn follow_list(&self, etcd: &mut Etcd, was_reached: &mut Option<bool>) {
        if self.is_stopping() {
            return etcd.leave();
        }
        match etcd.refresh() {
            Ok(found) => {
                self.merge_list(&found);
                if was_reached.replace(true) == Some(false) {
                    tracing::info!("etcd answers again");
                }
            }
            Err(because) if *was_reached != Some(false) => {
                *was_reached = Some(false);
                tracing::warn!(
                    "etcd is away, the list of nodes stays as it is: {because}. Nodes that come \
                     now are found when it is back"
                );
            }
            Err(_) => {}
        }
        let interval = if *was_reached == Some(true) { INTERVALS.0 } else { INTERVALS.1 };
        let mut waited = Duration::ZERO;
        while waited < interval && !self.is_stopping() {
            std::thread::sleep(STEP);
            waited += STEP;
        }
    }
}

#[cfg(test)]
mod tests {
    use tidepool_cluster::NodeName;

    use super::*;

    fn etcd(text: &str) -> Result<Etcd, String> {
        let config = ClusterConfig {
            nodes: String::new(),
            cluster_name: "reef".into(),
            key_file: "/key".into(),
            node_name: None,
            node_address: None,
            peer_port: 7478,
            peer_timeout: LIMIT,
            is_integrity_full: false,
            buffer_local_bytes: u64::MAX,
            buffer_servers: Vec::new(),
            tls: None,
        };
        let name = NodeName::new("n1").expect("a name");
        Etcd::new(text, &config, Member { name, host: "h1".into(), port: 7478 })
    }

    #[test]
    fn the_option_names_servers_and_a_directory() {
        let one = etcd("http://e1:2379").expect("one server");
        assert_eq!((one.servers.len(), one.directory.as_str()), (1, "tidepool/reef/"));
        let two = etcd("http://e1:2379, http://e2:2379/site/a/").expect("two servers");
        assert_eq!(two.servers, ["http://e1:2379", "http://e2:2379"]);
        assert_eq!(two.directory, "site/a/reef/");
        for wrong in ["", "e1:2379", "https://e1:2379", "http://", "http://e1/a,http://e2"] {
            assert!(etcd(wrong).is_err_and(|error| error.contains(GRAMMAR)), "{wrong}");
        }
    }
}
