//! What a node tells of its cluster.

use tidepool_cluster::{Breaker, MemberState, MemberView};
use tidepool_proto::cluster::{ClusterStatus, MemberStatus};

use super::Cluster;

fn name(state: MemberState) -> &'static str {
    match state {
        MemberState::Alive => "alive",
        MemberState::Suspect => "suspect",
        MemberState::Down => "down",
        MemberState::Left => "left",
        MemberState::NeverSeen => "never-seen",
    }
}

impl Cluster {
    /// Members, and what happened between them and this node.
    pub fn status(&self) -> ClusterStatus {
        let (views, counters) = {
            let members = self.members.lock();
            (members.members(), members.counters())
        };
        let members = views.into_iter().filter(|view| view.name != self.me);
        let rejected = self.server.lock().as_ref().map_or(0, |server| server.counters().rejected());
        let datagrams = self.counts.datagrams_rejected.get() + counters.garbage_datagrams + counters.garbage_requests;
        ClusterStatus {
            cluster: self.config.cluster_name.clone(),
            node: self.me.to_string(),
            members: members.map(|view| self.member(view)).collect(),
            blocks_fetched: self.counts.fetched.get(),
            blocks_missed: self.counts.missed.get(),
            blocks_changed: self.counts.changed.get(),
            blocks_served: self.counts.served.get(),
            blocks_filled_for_peers: self.counts.filled_for_peers.get(),
            messages_rejected: rejected + datagrams,
            location_entries: counters.entries,
            location_bytes: counters.entry_bytes,
        }
    }

    fn member(&self, view: MemberView) -> MemberStatus {
        let listed = self.roster.get(&view.name);
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
