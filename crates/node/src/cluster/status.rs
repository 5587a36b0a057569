//! What a node tells of its cluster.

use tidepool_cluster::{Breaker, FileLookup, MemberState, MemberView, NodeName};
use tidepool_peer::Fault;
use tidepool_proto::admin::{Explanation, NodeReport, Status};
use tidepool_proto::cluster::{ClusterStatus, HolderRun, MemberStatus};
use tidepool_proto::{Error, ErrorKind, Result, Version};

use super::shared::Shared;
use super::{Cluster, threads};
use crate::node::Node;

fn name(state: MemberState) -> &'static str {
    match state {
        MemberState::Alive => "alive",
        MemberState::Suspect => "suspect",
        MemberState::Down => "down",
        MemberState::Left => "left",
        MemberState::NeverSeen => "never-seen",
    }
}

/// Connections that were closed for what came by them; one that ended or hung tried nothing.
fn rejected(counters: &tidepool_peer::Counters) -> u64 {
    let is_hostile = |fault: &&Fault| !matches!(fault, Fault::TimedOut | Fault::Socket);
    Fault::ALL.iter().filter(is_hostile).map(|fault| counters.closed(*fault)).sum()
}

impl Cluster {
    /// Members, and what happened between them and this node.
    pub fn status(&self) -> ClusterStatus {
        let limit = self.core.upgrade().and_then(|core| core.background.limit());
        let (views, counters) = {
            let members = self.members.lock();
            (members.members(), members.counters())
        };
        let members = views.into_iter().filter(|view| view.name != self.me);
        let rejected = self.server.lock().as_ref().map_or(0, |server| rejected(&server.counters()));
        let datagrams = self.counts.datagrams_rejected.get()
            + counters.garbage_datagrams
            + counters.garbage_requests;
        ClusterStatus {
            cluster: self.config.cluster_name.clone(),
            node: self.me.to_string(),
            encrypted: self.config.tls.is_some(),
            members: members.map(|view| self.member(view)).collect(),
            blocks_fetched: self.counts.fetched.get(),
            blocks_missed: self.counts.missed.get(),
            blocks_changed: self.counts.changed.get(),
            blocks_served: self.counts.served.get(),
            blocks_filled_for_peers: self.counts.filled_for_peers.get(),
            messages_rejected: rejected + datagrams,
            location_entries: counters.entries,
            location_bytes: counters.entry_bytes,
            queued_bytes: self.queued_bytes(),
            copies: self.copies.status(limit),
            clean_copies: self.clean.status(),
            changes_shown: self.sight.last(),
        }
    }

    /// Bytes that sockets hold for other nodes.
    pub(super) fn queued_bytes(&self) -> u64 {
        self.server.lock().as_ref().map_or(0, tidepool_peer::Server::queued_bytes)
    }

    fn member(&self, view: MemberView) -> MemberStatus {
        let listed = self.roster.read().get(&view.name).cloned();
        let measured = self.peers.lock().view().into_iter().find(|peer| peer.name == view.name);
        MemberStatus {
            address: listed.map_or_else(String::new, |it| format!("{}:{}", it.host, it.port)),
            state: name(view.state).to_owned(),
            since_s: self.now().saturating_sub(view.since).as_secs(),
            sees_same_pfs: self.proofs.holds(&view.name),
            refused_because: self.proofs.refused_because(&view.name),
            rate_bytes_per_s: measured
                .as_ref()
                .map(|peer| peer.rate_bytes_per_s as u64)
                .filter(|rate| *rate > 0),
            avoided: measured.is_some_and(|peer| !matches!(peer.breaker, Breaker::Closed)),
            node: view.name.to_string(),
        }
    }
}

impl Cluster {
    /// Who holds which blocks of a file at `version`; empty also where its home does not answer.
    pub fn holders(&self, version: &Version) -> Vec<HolderRun> {
        let Shared { file, version } = Shared::named(version);
        let looked_up = self.members.lock().lookup_file(self.now(), file, version);
        let runs = match looked_up {
            FileLookup::Known(runs) => runs,
            FileLookup::Ask { home, request } => {
                let learned =
                    |reply: Vec<u8>| self.members.lock().learn_file(self.now(), &home, &reply);
                self.ask_home(&home, &request).and_then(learned).unwrap_or_default()
            }
        };
        let run = |run: tidepool_cluster::HolderRun| HolderRun {
            first_block: run.first_block.into(),
            blocks: run.count.into(),
            nodes: run.holders.iter().map(NodeName::to_string).collect(),
        };
        runs.into_iter().map(run).collect()
    }

    /// Adds who holds a file to what is known of it here.
    pub fn explain(&self, version: &Version, answer: &mut Explanation) {
        if answer.resident_bytes > 0 {
            answer.holders.push(self.me.to_string());
        }
        answer.holder_runs = self.holders(version);
        for node in answer.holder_runs.iter().flat_map(|run| &run.nodes) {
            if !answer.holders.contains(node) {
                answer.holders.push(node.clone());
            }
        }
        self.explain_splits(version, answer);
    }

    fn report(&self, node: &NodeName, state: MemberState) -> NodeReport {
        let (node, state) = (node.clone(), name(state).to_owned());
        let reply =
            self.transport.call(node.as_str(), &threads::about_status(), self.config.peer_timeout);
        let status = reply.map_err(|error| error.to_string()).and_then(|reply| {
            let read = serde_json::from_slice::<Status>(&reply);
            read.map_err(|_| "it answers what this release does not understand".to_owned())
        });
        let node = node.to_string();
        match status {
            Ok(status) => NodeReport { node, state, status: Some(Box::new(status)), error: None },
            Err(error) => NodeReport { node, state, status: None, error: Some(error) },
        }
    }
}

impl Node {
    /// What all nodes of the cluster say of themselves.
    pub(crate) fn cluster_reports(&self) -> Result<Vec<NodeReport>> {
        let cluster = self.core.cluster().ok_or_else(|| {
            let what = "asking the nodes of the cluster";
            Error::new(ErrorKind::InvalidInput, what, "this node stands alone")
                .remedy("start it with `cluster_nodes` and `cluster_key_file`")
        })?;
        let own = NodeReport {
            node: cluster.me.to_string(),
            state: "self".into(),
            status: Some(Box::new(self.status())),
            error: None,
        };
        let others = cluster.members.lock().members();
        let others = others.iter().filter(|view| view.name != cluster.me);
        let reports = std::thread::scope(|scope| {
            let asked: Vec<_> =
                others.map(|view| scope.spawn(|| cluster.report(&view.name, view.state))).collect();
            asked.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
        });
        Ok(std::iter::once(own).chain(reports).collect())
    }
}
