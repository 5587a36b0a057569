//! `deny.toml`: the licences that libraries of others may have, and cargo-deny, which checks them,
//! where libraries come from, and which of them are there in two versions.

use acceptance::environment::{self, Tool};
use acceptance::outcome::Outcome;
use acceptance::process;
use anyhow::{Context, Result};
use serde::Deserialize;

use crate::arguments::DenyOptions;

const FILE: &str = "deny.toml";
/// What reads the file.
const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    library: String,
    allow: Vec<String>,
}

/// The licences of the list, and those that it allows one library alone, by their SPDX names.
pub struct Accepted {
    pub all: Vec<String>,
    exceptions: Vec<Exception>,
}

impl Accepted {
    /// The licences that a library may have.
    pub fn of(&self, library: &str) -> Vec<String> {
        let exceptions = self.exceptions.iter().filter(|exception| exception.library == library);
        let also = exceptions.flat_map(|exception| &exception.allow);
        self.all.iter().chain(also).cloned().collect()
    }
}

/// The licences that libraries may have.
pub fn accepted_licences() -> Result<Accepted> {
    let text = std::fs::read_to_string(environment::checkout().join(FILE)).context(FILE)?;
    let deny: Deny = toml::from_str(&text).context(FILE)?;
    Ok(Accepted { all: deny.licenses.allow, exceptions: deny.licenses.exceptions })
}

/// Runs cargo-deny, which is compiled on first use. Advisories need their database, which comes by
/// Git from GitHub.
pub fn run(options: &DenyOptions) -> Result<Outcome> {
    let mut command = process::command(environment::tool(CARGO_DENY)?, &["--locked", "check"]);
    command.current_dir(environment::checkout());
    command.args(["--hide-inclusion-graph", "licenses", "bans", "sources"]);
    if options.advisories {
        command.arg("advisories");
    }
    let (status, said) = process::follow(&mut command)?;
    let mut outcome = Outcome::new("libraries of others");
    outcome.check(status.success(), || format!("cargo-deny ended with {status}"));
    let doubled = said.matches("warning[duplicate]").count();
    outcome.notes.push(format!("{doubled} libraries in two versions or more"));
    if !options.advisories {
        outcome.notes.push("advisories were not asked for: --advisories".to_owned());
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_list_of_licences_is_read_and_each_is_known() {
        let accepted = super::accepted_licences().unwrap();
        let foca = accepted.of("foca");
        let mpl = String::from("MPL-2.0");
        assert!(foca.contains(&mpl) && !accepted.all.contains(&mpl), "MPL-2.0 is for foca alone");
        let accepted = [accepted.all, foca].concat();
        assert!(accepted.iter().any(|name| name == "Apache-2.0"), "{accepted:?}");
        for name in &accepted {
            assert!(spdx::license_id(name).is_some(), "{name} is no licence of SPDX");
        }
    }
}
