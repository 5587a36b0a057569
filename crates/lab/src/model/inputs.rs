//! The inputs of the models: flags override an input file, which overrides a calibration file. A
//! rate that none of them gives is refused, never guessed.

use std::path::PathBuf;

use clap::Args;
use tidepool_model::{Cluster, Doubt};
use tidepool_proto::Result;

use super::doubts;
use crate::calibrate::file::Calibration;
use crate::rates::{Origin, Rates, read_toml};
use tidepool_terminal::output;

/// Flags of every command that needs the rates of a cluster.
#[derive(Args, Clone, Debug)]
pub struct InputArguments {
    /// Rates and extensions as flags.
    #[command(flatten)]
    pub rates: Rates,
    /// TOML file with the same names, words joined by underscores; flags win
    #[arg(long, value_name = "FILE", help_heading = "Rates of the cluster")]
    pub input: Option<PathBuf>,
    /// File that `tidepool calibrate` wrote; flags and --input win
    #[arg(long, value_name = "FILE", help_heading = "Rates of the cluster")]
    pub calibration: Option<PathBuf>,
}

/// Inputs put together.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// What the models take.
    pub cluster: Cluster,
    /// Where it was measured, if it was.
    pub origin: Option<Origin>,
    /// The calibration, for further facts.
    pub calibration: Option<Calibration>,
    /// Rates of the calibration that were measured too badly to decide by.
    pub doubts: Vec<Doubt>,
    /// What the rates of the calibration say that cannot be.
    pub contradictions: Vec<String>,
}

impl InputArguments {
    /// Puts flags, file and calibration together, and says where a calibration is from.
    pub fn inputs(&self) -> Result<Inputs> {
        let mut rates = self.rates.clone();
        if let Some(path) = &self.input {
            rates = rates.or(read_toml(path, "input file")?);
        }
        let calibration = self.calibration.as_deref().map(Calibration::read).transpose()?;
        let mut origin = None;
        let (mut doubts, mut contradictions) = (Vec::new(), Vec::new());
        if let Some(calibration) = &calibration {
            let mut found = calibration.origin();
            if rates.pfs.is_none() && rates.data_nodes.is_none() && calibration.pfs.is_some() {
                found.notes.push(
                    "the PFS rate is what one node measured; several nodes may get more, give --pfs"
                        .to_owned(),
                );
            }
            doubts = doubts::doubts(calibration, &rates)?;
            contradictions = doubts::contradictions(calibration, &rates)?;
            rates = rates.or(calibration.rates()?);
            for note in &found.notes {
                output::note(&format!("calibration: {note}"));
            }
            origin = Some(found);
        }
        Ok(Inputs { cluster: rates.cluster()?, origin, calibration, doubts, contradictions })
    }
}
