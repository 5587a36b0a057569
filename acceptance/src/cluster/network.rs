//! The network of a cluster: a namespace a node, and one with the bridge that joins them. Links are
//! shaped at both ends; partitions are neighbours with an address that nobody has, so that packets
//! vanish as in a broken network.
//!
//! Nothing of this machine's own network is touched: links are made inside the namespaces.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::plan::{Node, Plan};
use super::{processes, wait_until};
use crate::arguments::Rate;
use crate::process::{self, command};

/// The interface of a node.
const INTERFACE: &str = "eth0";
/// The bridge in the namespace of the switch.
const BRIDGE: &str = "br0";
/// No interface has it.
const NOBODY: &str = "02:00:00:00:00:00";
/// How long a packet waits for its turn at most; then it is dropped, as by a switch.
const QUEUE: &str = "20ms";
/// Smallest burst, in bytes: more than one large packet that the sender's kernel leaves whole.
const BURST_MIN: u64 = 512 << 10;
/// A burst lasts as long as a tick of a slow kernel clock.
const TICKS_PER_S: u64 = 250;
const GONE_LIMIT: Duration = Duration::from_secs(10);

/// Whether a namespace of this name exists.
pub fn exists(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}

/// Makes the namespace with the bridge.
pub fn make_switch(plan: &Plan) -> Result<()> {
    let switch = plan.switch();
    add(&switch)?;
    ip(&["-n", &switch, "link", "add", "name", BRIDGE, "type", "bridge"])?;
    ip(&["-n", &switch, "link", "set", "dev", BRIDGE, "up"])
}

/// Makes the namespace of a node and its link to the bridge.
pub fn make_node(plan: &Plan, node: &Node) -> Result<()> {
    let (space, switch) = (plan.namespace(node), plan.switch());
    let (port, link_address) = (node.name.as_str(), node.link_address());
    add(&space)?;
    ip(&["-n", &space, "link", "set", "dev", "lo", "up"])?;
    let port_end = ["-n", &switch, "link", "add", "name", port, "type", "veth"];
    let node_end = ["peer", "name", INTERFACE, "address", &link_address, "netns", &space];
    ip(&[&port_end[..], &node_end[..]].concat())?;
    ip(&["-n", &switch, "link", "set", "dev", port, "master", BRIDGE, "up"])?;
    let address = format!("{}/24", node.address());
    ip(&["-n", &space, "addr", "add", &address, "dev", INTERFACE])?;
    ip(&["-n", &space, "link", "set", "dev", INTERFACE, "up"])?;
    // What is for nobody must not take the links of all.
    let known = ["-n", &switch, "fdb", "replace", &link_address, "dev", port, "master", "static"];
    process::read(&mut command("bridge", &known))?;
    let quiet = ["-n", &switch, "link", "set", "dev", port, "learning", "off", "flood", "off"];
    process::read(&mut command("bridge", &quiet))?;
    shape(plan, node, node.link)
}

/// Holds the link of a node to a rate in both directions, or lifts the limit.
pub fn shape(plan: &Plan, node: &Node, rate: Rate) -> Result<()> {
    for (space, device) in ends(plan, node) {
        match rate.0 {
            Some(rate) => {
                let burst = (rate / TICKS_PER_S).max(BURST_MIN).to_string();
                // `bps` are bytes a second here.
                let rate = format!("{rate}bps");
                let place = ["-n", &space, "qdisc", "replace", "dev", &device, "root", "tbf"];
                let limit = ["rate", &rate, "burst", &burst, "latency", QUEUE];
                tc(&[&place[..], &limit[..]].concat())?;
            }
            None => {
                let show = ["-n", &space, "qdisc", "show", "dev", &device];
                if process::read(&mut command("tc", &show))?.contains("tbf") {
                    tc(&["-n", &space, "qdisc", "del", "dev", &device, "root"])?;
                }
            }
        }
    }
    Ok(())
}

fn ends(plan: &Plan, node: &Node) -> [(String, String); 2] {
    [(plan.namespace(node), INTERFACE.to_owned()), (plan.switch(), node.name.clone())]
}

/// Loses all that `from` sends to `to`.
pub fn lose(plan: &Plan, from: &Node, to: &Node) -> Result<()> {
    let (space, address) = (plan.namespace(from), to.address());
    let neighbour = ["-n", &space, "neigh", "replace", &address, "lladdr", NOBODY];
    ip(&[&neighbour[..], &["dev", INTERFACE, "nud", "permanent"]].concat())
}

/// Ends what [`lose`] began.
pub fn find_again(plan: &Plan, from: &Node, to: &Node) -> Result<()> {
    let space = plan.namespace(from);
    ip(&["-n", &space, "neigh", "del", &to.address(), "dev", INTERFACE])
}

/// Nodes to which all that `from` sends is lost.
pub fn lost<'a>(plan: &'a Plan, from: &Node) -> Result<Vec<&'a Node>> {
    let space = plan.namespace(from);
    let show = ["-n", &space, "neigh", "show", "dev", INTERFACE, "nud", "permanent"];
    let text = process::read(&mut command("ip", &show))?;
    let addresses: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(NOBODY))
        .filter_map(|line| line.split(' ').next())
        .collect();
    Ok(plan.nodes.iter().filter(|node| addresses.contains(&node.address().as_str())).collect())
}

/// Bytes that a link carried since it was made, with headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Into the node.
    pub received_bytes: u64,
    /// Out of the node.
    pub sent_bytes: u64,
}

/// Counters of a node's link, by a process on it.
pub fn traffic(process_id: u32) -> Result<LinkTraffic> {
    let path = format!("/proc/{process_id}/net/dev");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    parse_traffic(&text).with_context(|| format!("no {INTERFACE} in {path}"))
}

fn parse_traffic(text: &str) -> Option<LinkTraffic> {
    let line = text.lines().find_map(|line| {
        line.trim_start().strip_prefix(INTERFACE).and_then(|rest| rest.strip_prefix(':'))
    })?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [received_bytes, .., sent_bytes] = *fields.get(..9)? else { return None };
    Some(LinkTraffic { received_bytes, sent_bytes })
}

/// Removes a namespace with all that runs and lies in it; one that is gone is fine.
pub fn remove(namespace: &str) -> Result<()> {
    if !exists(namespace) {
        return Ok(());
    }
    processes::end_inside(namespace)?;
    ip(&["netns", "del", namespace])?;
    wait_until(GONE_LIMIT, || !exists(namespace))
        .with_context(|| format!("{namespace} stays; try `ip netns del {namespace}`"))
}

/// Refuses a name that a namespace of somebody else has: `down` would remove it.
///
/// # Errors
/// There is one.
pub fn refuse_foreign(namespace: &str) -> Result<()> {
    if exists(namespace) {
        bail!(
            "there is a namespace {namespace} that no cluster made: remove it by \
             `ip netns del {namespace}`, or take another --name"
        );
    }
    Ok(())
}

fn add(namespace: &str) -> Result<()> {
    ip(&["netns", "add", namespace])
}

fn ip(arguments: &[&str]) -> Result<()> {
    process::read(&mut command("ip", arguments)).map(drop)
}

fn tc(arguments: &[&str]) -> Result<()> {
    process::read(&mut command("tc", arguments)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::{LinkTraffic, parse_traffic};

    #[test]
    fn counters_of_a_link_are_read() {
        let text = "Inter-|   Receive\n face |bytes packets\n    lo: 9 9 9 9 9 9 9 9 9 9\n  \
                    eth0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n";
        let expected = LinkTraffic { received_bytes: 10, sent_bytes: 20 };
        assert_eq!(parse_traffic(text), Some(expected));
        assert_eq!(parse_traffic("  eth0: 10 1\n"), None);
        assert_eq!(parse_traffic(""), None);
    }
}
