//! The sources of a node's configuration, kept so that a reload reads them again.

use std::path::PathBuf;

use tidepool_proto::admin::ConfigEntry;
use tidepool_proto::option::RawOptions;
use tidepool_proto::resolve::{Machine, resolve};
use tidepool_proto::{NodeConfig, Result};

use crate::machine::machine;
use crate::settings::gather;

/// What the configuration was made from, so that it can be made again.
pub struct Sources {
    options: RawOptions,
    file: Option<PathBuf>,
    machine: Machine,
    /// The log was named by the program that started the daemon, not by its user.
    default_log: bool,
}

impl Sources {
    /// Remembers the options of the command line and the configuration file. Its path is made
    /// absolute now, before the working directory changes.
    pub fn new(options: RawOptions, file: Option<PathBuf>, default_log: bool) -> Result<Sources> {
        let machine = machine()?;
        let file = file.map(|path| machine.working_directory.join(path));
        Ok(Sources { options, file, machine, default_log })
    }

    /// Reads file and environment again and validates everything.
    pub fn read(&self) -> Result<(NodeConfig, Vec<String>)> {
        let (raw, warnings) = gather(self.file.as_deref(), std::env::vars_os(), &self.options)?;
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
