//! Who may be a member: the list of nodes, and nobody else.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use crate::nodelist::{self, NODES_MAX};
use crate::{NodeName, hash};

/// Most bytes of a file that lists nodes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of a host's name (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// A node that may be a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: NodeName,
    /// Host name or address, an IPv6 address without brackets.
    pub host: String,
    /// Port, TCP and UDP.
    pub port: u16,
}

/// The nodes that may be members, each name once, in the order of the list. At most 65,534.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    members: Vec<Member>,
    by_name: HashMap<NodeName, usize>,
}

/// Why a list of nodes cannot be used: cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterError(String);

impl Roster {
    /// Reads a list like `a,b:7000,x=10.0.0.1,n[01-10,12],v=[fd00::1]:7000`.
    ///
    /// An entry is `HOST[:PORT]` or `NAME=HOST[:PORT]`; the name is the host's where none is given.
    /// Brackets of NAME and HOST are expanded together: `n[1-4]=10.0.0.[1-4]`.
    ///
    /// # Errors
    /// An entry or an expression cannot be read, a name comes twice, or there are more than 65,534.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, RosterError> {
        let mut roster = Self::default();
        for entry in nodelist::entries(text) {
            roster.add_entry(entry, default_port)?;
        }
        Ok(roster)
    }

    /// Reads a file: entries one a line or separated by commas, `#` begins a comment.
    ///
    /// # Errors
    /// As [`Self::parse`], or the file cannot be read or is larger than 16 MiB.
    pub fn read(path: &Path, default_port: u16) -> Result<Self, RosterError> {
        use std::io::Read;
        let at = |why: String| RosterError(format!("list of nodes {}: {why}", path.display()));
        let file = std::fs::File::open(path).map_err(|error| at(error.to_string()))?;
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        let length = read.map_err(|error| at(error.to_string()))?;
        if length as u64 > FILE_BYTES_MAX {
            return Err(at(format!("larger than {FILE_BYTES_MAX} bytes; is it the right file?")));
        }
        let mut roster = Self::default();
        for (line, number) in text.lines().zip(1..) {
            let entries = line.split('#').next().unwrap_or_default();
            for entry in nodelist::entries(entries) {
                let added = roster.add_entry(entry, default_port);
                added.map_err(|RosterError(why)| at(format!("line {number}: {why}")))?;
            }
        }
        Ok(roster)
    }

    /// The nodes, in the order of the list.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The node of that name.
    #[must_use]
    pub fn get(&self, name: &NodeName) -> Option<&Member> {
        self.by_name.get(name).map(|&index| &self.members[index])
    }

    /// A list of one node.
    ///
    /// # Errors
    /// What is given is no host name and no address.
    pub fn alone(member: Member) -> Result<Self, RosterError> {
        let mut roster = Self::default();
        roster.add(member.name.as_str(), member.host, member.port)?;
        Ok(roster)
    }

    /// Takes over what another list has: nodes that are new, and addresses that are others. Returns
    /// the new ones. Nodes that the other list lacks stay; those beyond 65,534 are left out.
    pub fn merge(&mut self, other: &Self) -> Vec<NodeName> {
        let mut new = Vec::new();
        for member in &other.members {
            match self.by_name.get(&member.name) {
                Some(&index) => self.members[index] = member.clone(),
                None if self.members.len() < NODES_MAX => {
                    self.by_name.insert(member.name.clone(), self.members.len());
                    self.members.push(member.clone());
                    new.push(member.name.clone());
                }
                None => {}
            }
        }
        new
    }

    fn add_entry(&mut self, entry: &str, default_port: u16) -> Result<(), RosterError> {
        let (name, address) = match entry.split_once('=') {
            Some((name, address)) => (Some(name), address),
            None => (None, entry),
        };
        let (host, port) = split_address(address, default_port)?;
        let expand = |text: &str| nodelist::expand(text, NODES_MAX).map_err(RosterError);
        // An IPv6 address in brackets is no expression.
        let hosts = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) if inner.contains(':') => vec![inner.to_owned()],
            _ => expand(host)?,
        };
        let names = name.map_or_else(|| Ok(hosts.clone()), expand)?;
        if names.len() != hosts.len() {
            return Err(RosterError(format!(
                "{entry}: {} names for {} hosts; give as many of each",
                names.len(),
                hosts.len()
            )));
        }
        for (name, host) in names.into_iter().zip(hosts) {
            self.add(&name, host, port)?;
        }
        Ok(())
    }

    fn add(&mut self, name: &str, host: String, port: u16) -> Result<(), RosterError> {
        let name = NodeName::new(name).map_err(|error| {
            RosterError(format!("{error}; a name is given as NAME=HOST, like n1={host}"))
        })?;
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:%".contains(&byte);
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(valid) {
            return Err(RosterError(format!("{host:?} is no host name and no address")));
        }
        if self.members.len() >= NODES_MAX {
            return Err(RosterError(format!("more than {NODES_MAX} nodes; split the cluster")));
        }
        if self.by_name.insert(name.clone(), self.members.len()).is_some() {
            return Err(RosterError(format!("{name} is in the list twice; name each node once")));
        }
        self.members.push(Member { name, host, port });
        Ok(())
    }

    /// Hashes of the names, by which members are told apart on the wire.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = (NodeName, u64)> {
        self.members.iter().map(|member| (member.name.clone(), name_hash(&member.name)))
    }
}

/// What stands for a member on the wire. Of 65,534 names two have the same by a chance of 10^-10;
/// then the second is no member.
pub(crate) fn name_hash(name: &NodeName) -> u64 {
    hash::text(name.as_str().as_bytes())
}

/// Splits `HOST[:PORT]`; the host keeps brackets that it has.
fn split_address(address: &str, default_port: u16) -> Result<(&str, u16), RosterError> {
    let after_bracket = address.rfind(']').map_or(0, |at| at + 1);
    let tail = &address[after_bracket..];
    let Some(colon) = tail.find(':') else { return Ok((address, default_port)) };
    if tail[colon + 1..].contains(':') {
        return Err(RosterError(format!(
            "{address}: an IPv6 address is written in brackets, like [fd00::1]:7000"
        )));
    }
    match tail[colon + 1..].parse() {
        Ok(port) if port != 0 => Ok((&address[..after_bracket + colon], port)),
        _ => Err(RosterError(format!("{address}: the port is no number from 1 to 65535"))),
    }
}

impl fmt::Display for RosterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for RosterError {}
