//! `tidepool node start`: validates the configuration, then serves here or in a daemon.

use tidepool_control::actuator::read_stores;
use tidepool_proto::admin::ConfigEntry;
use tidepool_proto::resolve::{Machine, resolve};
use tidepool_proto::{NodeConfig, Result};

use super::assemble;
use super::detach::{self, Readiness};
use super::place;
use crate::arguments::StartArguments;
use crate::exit::Outcome;
use crate::machine::machine;
use crate::output;
use crate::settings::{NodeFlags, gather};

/// What the configuration was made from, so that it can be made again.
pub struct Sources {
    flags: NodeFlags,
    machine: Machine,
    /// The log was named by the program that started the daemon, not by its user.
    default_log: bool,
}

impl Sources {
    /// Remembers flags; paths are made absolute now, before the working directory changes.
    pub fn new(mut flags: NodeFlags, default_log: bool) -> Result<Sources> {
        let machine = machine()?;
        flags.config = flags.config.map(|path| machine.working_directory.join(path));
        Ok(Sources { flags, machine, default_log })
    }

    /// Reads file and environment again and validates everything.
    pub fn read(&self) -> Result<(NodeConfig, Vec<String>)> {
        let file = self.flags.config.as_deref();
        let (raw, warnings) = gather(file, std::env::vars_os(), &self.flags.options)?;
        let mut config = resolve(raw, &self.machine)?;
        let is_log = |entry: &&mut ConfigEntry| self.default_log && entry.name == "log_file";
        if let Some(log) = config.entries.iter_mut().find(is_log) {
            log.origin = "default".to_owned();
        }
        Ok((config, warnings))
    }

    /// Facts of the machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}

/// Runs `node start`.
pub fn start(arguments: StartArguments) -> Result<Outcome> {
    let readiness = arguments.ready_descriptor.map(Readiness::adopt).transpose()?;
    let sources = Sources::new(arguments.flags, arguments.default_log)?;
    match readiness {
        Some(readiness) => {
            let served = serve_in_daemon(sources, &readiness);
            if let Err(error) = &served {
                readiness.failed(error);
            }
            served
        }
        None => {
            let (config, warnings) = sources.read()?;
            // A mistake in there is told before anything runs.
            config.control.stores_file.as_deref().map(read_stores).transpose()?;
            warnings.iter().for_each(|warning| output::note(&format!("warning: {warning}")));
            if config.foreground {
                return serve_in_front(config, sources, arguments.json);
            }
            place::prepare(&config.socket)?;
            let summary = detach::spawn(&config)?;
            if arguments.json {
                output::json(&summary)?
            } else {
                summary.print()
            }
            Ok(Outcome::Done)
        }
    }
}

fn serve_in_front(config: NodeConfig, sources: Sources, json: bool) -> Result<Outcome> {
    place::prepare(&config.socket)?;
    let node = assemble::start(config, sources)?;
    // The node is there, whether anybody reads of it or not.
    output::outlive_readers();
    if json {
        output::json(node.summary())?
    } else {
        node.summary().print()
    }
    node.run()
}

fn serve_in_daemon(sources: Sources, readiness: &Readiness) -> Result<Outcome> {
    let (config, warnings) = sources.read()?;
    let node = assemble::start(config, sources)?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    readiness.ready(node.summary());
    node.run()
}
