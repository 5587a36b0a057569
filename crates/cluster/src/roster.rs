//! Who may be a member: the list of nodes, and nobody else.

use std::fmt;
use std::path::Path;

use crate::NodeName;

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

/// The nodes that may be members, each name once, in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    members: Vec<Member>,
}

/// Why a list of nodes cannot be used.
#[derive(Debug)]
pub struct RosterError(String);

#[expect(unused_variables, reason = "being written")]
impl Roster {
    /// Reads a list like `a,b:7000,x=10.0.0.1,n[01-10,12]`.
    ///
    /// # Errors
    /// An entry or an expression cannot be read, a name comes twice, or there are more than 65,536.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, RosterError> {
        todo!()
    }

    /// Reads a file: entries one a line or separated by commas, `#` begins a comment.
    ///
    /// # Errors
    /// As [`Self::parse`], or the file cannot be read.
    pub fn read(path: &Path, default_port: u16) -> Result<Self, RosterError> {
        todo!()
    }

    /// The nodes, in the order of the list.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The node of that name.
    #[must_use]
    pub fn get(&self, name: &NodeName) -> Option<&Member> {
        self.members.iter().find(|member| member.name == *name)
    }
}

impl fmt::Display for RosterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for RosterError {}
